"""Download a checkpoint once, completely, and give it its name only when it is known to be one."""

import hashlib
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from pathlib import Path
from typing import Any, Optional, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener, url2pathname

import torch
from filelock import FileLock
from mmengine.logging import print_log
from tqdm import tqdm

from ..outputs import file_digest
from ..whole_files import PARTIAL, write_whole_by
from .errors import CheckpointError, RefusedCheckpoint
from .hugging_face import file_in
from .reading.containers import START_BYTES, check_start

ATTEMPTS = 5  # at most, each going on where the one before was cut
PAUSE_S = 1.0  # before the second attempt; doubled before each further one
TIMEOUT_S = 30.0  # after which a server that stands still is given up
LEAST_BYTES_S = 1024  # a server that sends fewer, over as long as the timeout, stands still
MOST_BYTES = 16 << 30  # the largest Swin's detector takes 3.4 GB with the state of its optimizer
CHUNK_BYTES = 1 << 20
SCHEMES = ('http', 'https')
# The end of a file name that carries the start of the file's SHA-256: OpenMMLab's `_20210902_120937-9d6b7cfa.pth`,
# torchvision's `-704ceda3.pth`. Digits alone count after a date only: `-20220317.pth` is one itself.
_HASH = re.compile(r'(?:_\d{8}(?:_\d{6})?-|-(?=\d*[a-f]))([0-9a-f]{8,64})\.\w+$')

_KEPT = re.compile(r'[0-9a-f]{16}-.+')  # the name of a file that is kept

T = TypeVar('T')
_timeout = TIMEOUT_S


def set_timeout(seconds: float) -> None:
    """How long a server may stand still in this process: the tools' --timeout."""
    global _timeout
    _timeout = seconds


def fetch(address: str, read: Callable[[Path], T]) -> T:
    """What `read` makes of the file at a path, file://, http:// or https:// address; or in a folder of transformers.

    Downloads are kept in torch.hub's cache folder under a name that stands for the whole address. A file that `read`
    cannot take as a checkpoint is not kept, and one that was kept earlier is downloaded again.

    Raises:
        CheckpointError: if there is no such file, it cannot be downloaded, or the hash in its name is wrong; and what
            `read` raises.
    """
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise CheckpointError(f'it is no address: {error}') from error
    if parts.scheme in SCHEMES:
        return _fetch_from_server(address, read)
    if parts.scheme == 'file':
        path = Path(url2pathname(parts.path))
    elif '://' in address:
        raise CheckpointError('a path, file://, http:// or https:// was expected')
    else:
        path = Path(address).expanduser()
    if path.is_dir():
        path = file_in(path)
    if not path.is_file():
        raise CheckpointError('there is no such file')
    return read(path)


def _fetch_from_server(url: str, read: Callable[[Path], T]) -> T:
    folder = Path(torch.hub.get_dir()) / 'checkpoints'
    name = _file_name(url)
    target = folder / f'{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name[-100:]}'
    results: list[T] = []

    def read_kept() -> bool:
        """Read what was kept earlier, if it is what the address says."""
        try:
            if target.is_file() and _hash_is_right(target, name):
                results.append(read(target))
        except RefusedCheckpoint:
            raise
        except CheckpointError as error:
            print_log(f'{target}: {error}; it is downloaded again', logger='current')
        return bool(results)

    def download(partial: Path) -> None:
        _download(url, partial)
        if not _hash_is_right(partial, name):
            raise CheckpointError(
                f'the downloaded file does not have the SHA-256 its name says, {_HASH.findall(name)[0]}: it is '
                'damaged, or another file'
            )
        with suppress(RefusedCheckpoint):  # which is whole, and kept for whoever allows it
            results.append(read(partial))

    if read_kept():
        return results[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The processes of one machine wait for the first of them, and find the file. The lock goes with its process.
        with FileLock(f'{target}.lock'):
            if not read_kept():
                _remove_what_killed_processes_left(folder)
                print_log(f'Downloading {url} to {target}', logger='current')
                write_whole_by(target, download)
    except OSError as error:
        raise CheckpointError(
            f'it cannot be kept in {folder} ({error.strerror}); the environment variable TORCH_HOME names another'
        ) from error
    return results[0] if results else read(target)


def _remove_what_killed_processes_left(folder: Path) -> None:
    """Remove beginnings of downloads that nobody goes on with: whoever does holds the lock of its file."""
    for partial in folder.glob(PARTIAL + '*'):
        if _KEPT.fullmatch(name := partial.name.removeprefix(PARTIAL)):
            with suppress(OSError), FileLock(folder / f'{name}.lock', timeout=0):  # a Timeout is an OSError
                partial.unlink(missing_ok=True)


def _file_name(url: str) -> str:
    name = unquote(urlsplit(url).path).rpartition('/')[2]
    if not name:
        raise CheckpointError('the address names no file')
    return re.sub(r'[^\w.-]', '_', name)


def _hash_is_right(path: Path, name: str) -> bool:
    expected = _HASH.search(name)
    return expected is None or file_digest(path).startswith(expected[1])


class _Cut(Exception):
    """A download ended before the file did; another attempt may do.

    Args:
        validator: what the server said to tell versions of the file apart, if what came before the cut can be kept.
    """

    def __init__(self, reason: object, validator: Optional[str]):
        super().__init__(' '.join(str(reason).split()))
        self.validator = validator


def _download(url: str, partial: Path) -> None:
    validator = None
    for attempt in range(ATTEMPTS):
        try:
            return _attempt(url, partial, validator)
        except _Cut as error:
            cut, validator = error, error.validator
        print_log(f'Downloading {url}: {cut}; attempt {attempt + 1} of {ATTEMPTS}', logger='current')
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE_S * 2**attempt)
    raise CheckpointError(
        f'it could not be downloaded in {ATTEMPTS} attempts: {cut}. A path serves in the place of the address, if you '
        'download the file elsewhere; init_cfg=None begins with random weights'
    ) from cut


def _attempt(url: str, partial: Path, validator: Optional[str]) -> None:
    """Append to `partial` what is missing of the file, or begin anew if it is no longer the same, or cannot be resumed.

    `validator` is what the server said to tell versions of the file apart.
    """
    received = partial.stat().st_size if validator else 0
    with _open(url, received, validator) as response:
        if response.status == 206:
            if not received or not (response.headers.get('Content-Range') or '').startswith(f'bytes {received}-'):
                raise _Cut('the server sends another part of the file than was asked for', None)
        else:
            received = 0
        encoding = response.headers.get('Content-Encoding') or 'identity'
        if encoding.lower() != 'identity':
            raise CheckpointError(f'the server sends it packed ({encoding!r}), which was not asked for')
        validator = response.headers.get('ETag') or response.headers.get('Last-Modified')
        if validator and validator.startswith('W/'):  # weak: equal for files that are not, byte for byte
            validator = None
        total = None if response.length is None else received + response.length
        progress = tqdm(total=total, initial=received, unit='B', unit_scale=True, disable=not sys.stderr.isatty())
        with partial.open('r+b' if received else 'wb') as file, progress:
            start = file.read(START_BYTES) if received else b''
            file.seek(received)
            for chunk in _chunks(response, validator):
                if max(received + len(chunk), total or 0) > MOST_BYTES:
                    raise CheckpointError(f'the server sends more than the {MOST_BYTES >> 30} GiB that are downloaded')
                file.write(chunk)
                received += len(chunk)
                progress.update(len(chunk))
                if len(start) < START_BYTES:
                    start += chunk
                    if len(start) >= START_BYTES:  # a page can be endless
                        check_start(start)
    if total is not None and received < total:
        raise _Cut(f'the connection was cut after {received} of {total} bytes', validator)


def _open(url: str, received: int, validator: Optional[str]) -> HTTPResponse:
    headers = {'User-Agent': 'swin_backbone'}
    if received and validator:
        headers.update({'Range': f'bytes={received}-', 'If-Range': validator})
    try:
        response: HTTPResponse = _OPENER.open(Request(url, headers=headers), timeout=_timeout)
        return response
    except HTTPError as error:
        error.close()
        said = f'the server answers {error.code} {error.reason}'.split('\n')[0]
        if error.code >= 500 or error.code == 429:
            raise _Cut(said, validator) from error
        raise CheckpointError(said) from error
    except CheckpointError:
        raise
    except (ValueError, InvalidURL) as error:
        raise CheckpointError(f'it is no address: {error}') from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise CheckpointError(f'the server cannot prove who it is: {reason.verify_message}') from error
        raise _Cut(f'{type(reason).__name__}: {reason}', validator) from error


def _chunks(response: HTTPResponse, validator: Optional[str]) -> Iterator[bytes]:
    """The body, as it comes."""
    since, received = time.monotonic(), 0
    try:
        while chunk := response.read1(CHUNK_BYTES):
            yield chunk
            received += len(chunk)
            seconds = time.monotonic() - since
            if seconds >= _timeout:
                if received < LEAST_BYTES_S * seconds:
                    raise _Cut(f'the server sent {received} bytes in {seconds:.0f} s', validator)
                since, received = time.monotonic(), 0
    except (OSError, HTTPException) as error:
        raise _Cut(f'{type(error).__name__}: {error}', validator) from error


class _Prompt(HTTPConnection):
    """A connection on which the head of an answer comes in time; a socket's own timeout begins anew with every byte."""

    def getresponse(self) -> HTTPResponse:
        late = threading.Event()

        def stop() -> None:
            late.set()
            with suppress(OSError, TypeError):  # closed meanwhile
                # Not the method of a TLS socket, which takes its reader's state away
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

        timer = threading.Timer(_timeout, stop)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if late.is_set():  # http.client takes a head that was cut for a whole one
                raise TimeoutError(f'no answer in {_timeout:g} s')


class _PromptTls(_Prompt, HTTPSConnection):
    """The same over TLS."""


class _Http(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Prompt, req)


class _Https(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_PromptTls, req)


class _Redirect(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Optional[Request]:
        if urlsplit(newurl).scheme not in SCHEMES:
            raise CheckpointError(f'the server passes on to {newurl!r}, and http:// or https:// was expected')
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = build_opener(_Http, _Https, _Redirect)
