"""Download a checkpoint once, completely, and compare it with the hash in its name."""

import hashlib
import os
import re
import sys
import time
from http.client import HTTPException
from pathlib import Path
from typing import Optional
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, url2pathname, urlopen

import torch
from filelock import FileLock
from mmengine.logging import print_log
from tqdm import tqdm

from .errors import CheckpointError

ATTEMPTS = 5  # at most, each going on where the one before was cut
PAUSE_S = 1.0  # before the second attempt; doubled before each further one
TIMEOUT_S = 30.0  # without a byte from the server
CHUNK_BYTES = 1 << 20
# The end of a file name that carries the start of the file's SHA-256: OpenMMLab's `_20210902_120937-9d6b7cfa.pth`,
# torchvision's `-704ceda3.pth`. Digits alone count after a date only: `-20220317.pth` is one itself.
_HASH = re.compile(r'(?:_\d{8}(?:_\d{6})?-|-(?=\d*[a-f]))([0-9a-f]{8,64})\.\w+$')


def fetch(address: str) -> Path:
    """The file at a path, file://, http:// or https:// address; downloads are kept in torch.hub's cache folder.

    Raises:
        CheckpointError: if there is no such file, the connection keeps breaking, or the hash in its name is wrong.
    """
    parts = urlsplit(address)
    if parts.scheme in ('http', 'https'):
        return _download(address)
    if parts.scheme == 'file':
        path = Path(url2pathname(parts.path))
    elif '://' in address:
        raise CheckpointError(f'checkpoint {address!r}: a path, file://, http:// or https:// was expected')
    else:
        path = Path(address).expanduser()
    if not path.is_file():
        raise CheckpointError(f'checkpoint {address!r} is no file')
    return path


def _download(url: str) -> Path:
    target = Path(torch.hub.get_dir()) / 'checkpoints' / _file_name(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The processes of one machine wait for the first of them, and find the file. The lock goes with its process.
    with FileLock(f'{target}.lock'):
        if target.is_file() and _hash_is_right(target):
            return target
        print_log(f'Downloading {url} to {target}', logger='current')
        part = Path(f'{target}.part')
        try:
            _download_with_retries(url, part)
            if not _hash_is_right(part, target.name):
                raise CheckpointError(
                    f'checkpoint {url!r}: the downloaded file does not have the SHA-256 its name says, '
                    f'{_HASH.findall(target.name)[0]}: it is damaged, or another file'
                )
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    return target


def _file_name(url: str) -> str:
    path = unquote(urlsplit(url).path)
    # On Hugging Face every file is called model.safetensors: the repository and revision go before it.
    owner_to_file = re.fullmatch(r'/([^/]+)/([^/]+)/resolve/([^/]+)/(.+)', path)
    name = '--'.join(owner_to_file.groups()).replace('/', '--') if owner_to_file else path.rpartition('/')[2]
    if not name:
        raise CheckpointError(f'checkpoint {url!r} names no file')
    return name


def _hash_is_right(path: Path, name: Optional[str] = None) -> bool:
    expected = _HASH.search(name or path.name)
    if expected is None:
        return True
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest().startswith(expected[1])


def _download_with_retries(url: str, part: Path) -> None:
    part.unlink(missing_ok=True)
    validator = None
    for attempt in range(ATTEMPTS):
        try:
            return _download_once(url, part, validator)
        except HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise CheckpointError(f'checkpoint {url!r}: the server answers {error.code} {error.reason}') from error
            reason: Exception = error
        except _Cut as error:
            reason, validator = error, error.validator
        except (OSError, HTTPException) as error:
            reason = error
        print_log(f'Downloading {url}: {reason}; attempt {attempt + 1} of {ATTEMPTS}', logger='current')
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE_S * 2**attempt)
    raise CheckpointError(f'checkpoint {url!r} could not be downloaded in {ATTEMPTS} attempts: {reason}') from reason


class _Cut(OSError):
    """The connection ended before the file did."""

    def __init__(self, received: int, total: int, validator: Optional[str]):
        super().__init__(f'the connection was cut after {received} of {total} bytes')
        self.validator = validator


def _download_once(url: str, part: Path, validator: Optional[str]) -> None:
    """Append to `part` what is missing of the file, or begin anew if it is no longer the same, or cannot be resumed.

    `validator` is what the server said to tell versions of the file apart.
    """
    received = part.stat().st_size if validator and part.exists() else 0
    headers = {'User-Agent': 'swin_backbone'}
    if received and validator:
        headers.update({'Range': f'bytes={received}-', 'If-Range': validator})
    with urlopen(Request(url, headers=headers), timeout=TIMEOUT_S) as response:
        if response.status != 206:
            received = 0
        validator = response.headers.get('ETag') or response.headers.get('Last-Modified')
        if validator and validator.startswith('W/'):  # weak: equal for files that are not, byte for byte
            validator = None
        length = response.headers.get('Content-Length')
        total = received + int(length) if length else None
        progress = tqdm(total=total, initial=received, unit='B', unit_scale=True, disable=not sys.stderr.isatty())
        with part.open('ab' if received else 'wb') as file, progress:
            try:
                while chunk := response.read(CHUNK_BYTES):
                    file.write(chunk)
                    received += len(chunk)
                    progress.update(len(chunk))
            except (OSError, HTTPException) as error:
                raise _Cut(received, total or 0, validator) from error
    if total is not None and received < total:
        raise _Cut(received, total, validator)
