"""Download a checkpoint once. Files that are no checkpoints are deleted."""

import hashlib
import os
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from http.client import HTTPException
from logging import getLogger
from pathlib import Path, PurePosixPath
from typing import Optional, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import Request, url2pathname, urlopen

import torch
from filelock import FileLock
from torch.hub import tqdm  # type: ignore[attr-defined]  # without tqdm: torch's stand-in, with fewer figures

from ..whole_files import CANNOT_WRITE, PARTIAL, write_whole, write_whole_by
from .errors import CheckpointError, RefusedCheckpoint, name_in_errors
from .hugging_face import find_weights_file

TIMEOUT_S = 30.0
CHUNK = 1 << 17  # bytes
# The end of a file name with the start of the file's SHA-256: OpenMMLab's `_20210902_120937-9d6b7cfa.pth`,
# torchvision's `-704ceda3.pth`. Digits alone count only behind a date: `-20220317.pth` is a date.
_HASH = re.compile(r'(?:_\d{8}(?:_\d{6})?-|-(?=\d*[a-f]))([0-9a-f]{8,64})\.\w+$')

T = TypeVar('T')
_logger = getLogger(__name__)
_timeout: ContextVar[float] = ContextVar('timeout')  # in seconds; each thread has its own


def set_timeout(seconds: float) -> None:
    """Set how long a download of this thread waits for a silent server: the tools' --timeout."""
    _timeout.set(seconds)


def fetch(address: str, read: Callable[[Path], T]) -> T:
    """Return the result of `read` for the file at a path, file://, http:// or https:// address.

    A folder of transformers stands for its file of weights. Downloads are kept in torch.hub's cache folder, by the
    whole address. A file that torch.hub itself put there under the plain name serves for the first address that is
    fetched, and for no other. A download that `read` refuses is not kept. A damaged file in the cache is fetched again.

    Raises:
        CheckpointError: if there is no such file or the download fails; and from `read`.
    """
    parts = urlsplit(address)
    if parts.scheme in ('http', 'https'):
        return _fetch_from_server(address, read)
    if parts.scheme == 'file':
        path = Path(url2pathname(parts.path))
    elif '://' in address:
        raise CheckpointError('a path, file://, http:// or https:// was expected')
    else:
        path = Path(address).expanduser()
    if path.is_dir():
        path = find_weights_file(path)
    if not path.is_file():
        raise CheckpointError('there is no such file')
    return read(path)


def _fetch_from_server(url: str, read: Callable[[Path], T]) -> T:
    name = re.sub(r'[^\w.-]', '_', unquote(urlsplit(url).path).rpartition('/')[2])
    if not name:
        raise CheckpointError('the address names no file')
    folder = Path(torch.hub.get_dir(), 'checkpoints')
    cache_file = folder / f'{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name[-100:]}'
    hub_file = folder / PurePosixPath(urlsplit(url).path).name  # of torch.hub, or put there by hand
    is_new = not cache_file.is_file()
    if is_new:
        owner = _find_owner(hub_file, url)
        if owner == url.partition('?')[0]:
            _logger.info(f'{hub_file} serves for {url}')
            with name_in_errors(hub_file):
                return read(hub_file)
        destination = f'{cache_file}, because {hub_file} serves for {owner}' if owner else str(hub_file)
        sha256 = _HASH.search(name)
        _download_once(url, cache_file, sha256[1] if sha256 else '', destination)
    try:
        return read(cache_file)
    except RefusedCheckpoint:  # a whole file, kept for --unsafe-load
        raise
    except CheckpointError as error:
        cache_file.unlink(missing_ok=True)
        if is_new:
            raise
        _logger.info(f'{cache_file}: {error}; it is downloaded again')
        return _fetch_from_server(url, read)


def _find_owner(file: Path, url: str) -> Optional[str]:
    """Return the one address that a file of torch.hub's cache serves for; None without a file.

    A name such as model.safetensors belongs to many addresses. The first address that is fetched gets the file; a
    second file keeps the address. Where no file can be written, the file serves for every address.
    """
    if not os.path.isfile(file):  # False for a name that is too long
        return None
    address_file, address = file.with_name(f'{file.name}.address'), url.partition('?')[0]
    try:
        if not address_file.is_file():
            with FileLock(f'{address_file}.lock'):
                if not address_file.is_file():
                    write_whole(address_file, address.encode())
        return address_file.read_text(encoding='utf-8')
    except OSError:
        return address


def _download_once(url: str, cache_file: Path, sha256: str, destination: str) -> None:
    """Download a file that is not there yet, or raise CheckpointError. The processes of a machine wait for the first.

    Args:
        sha256: the start of the hash.
        destination: where a user can put the file, for an error.
    """
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{cache_file}.lock'):
            if not cache_file.is_file():
                _download(url, cache_file, sha256, destination)
    except OSError as error:
        raise CheckpointError(
            f'it cannot be kept in {cache_file.parent} ({error.strerror}); the environment variable TORCH_HOME names '
            'another'
        ) from error


def _download(url: str, cache_file: Path, sha256: str, destination: str) -> None:
    for leftover in cache_file.parent.glob(f'{PARTIAL}*-{cache_file.name}'):  # of a killed process: the lock is ours
        leftover.unlink()
    _logger.info(f'Downloading {url} to {cache_file}')
    try:
        write_whole_by(cache_file, partial(_receive, url, sha256))
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
            raise
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise CheckpointError(
            f'it could not be downloaded ({reason}); put the file at {destination}, or write its path in the place of '
            'the address; init_cfg=None begins with random weights'
        ) from error


def _receive(url: str, sha256: str, path: Path) -> None:
    """Write the answer of a server to a file, or raise OSError, or ValueError for a wrong hash and a truncated answer.

    torch.hub's function takes the limit of time from the socket module, a setting of the process.
    """
    request = Request(url, headers={'User-Agent': 'torch.hub'})
    received = hashlib.sha256()
    with urlopen(request, timeout=_timeout.get(TIMEOUT_S)) as answer, path.open('wb') as file:
        size = answer.length
        hidden = not sys.stderr.isatty()
        with tqdm(total=size, unit='B', unit_scale=True, unit_divisor=1024, disable=hidden) as bar:
            while part := answer.read(CHUNK):
                file.write(part)
                received.update(part)
                bar.update(len(part))
        if answer.length:
            raise ValueError(f'the answer is truncated: {answer.length} bytes are missing')
    if not received.hexdigest().startswith(sha256):
        raise ValueError(f'invalid hash value (expected "{sha256}", got "{received.hexdigest()}")')
