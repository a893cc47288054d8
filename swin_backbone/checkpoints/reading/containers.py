"""The two kinds of file that torch.save writes: a zip archive, and until torch 1.6 pickles and storages in a row."""

import io
import struct
import sys
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO, Optional, cast

import torch
from torch import Tensor

from ..errors import CheckpointError
from .budget import Budget
from .plain import Forbidden, Name, as_plain
from .rebuild import Storage
from .unpickle import unpickle

CHUNK_BYTES = 1 << 20
START_BYTES = 512  # by which a file's kind is told
ENTRY_TIMES = 24  # what zipfile makes of a directory, over the directory's size
MAGIC_NUMBER, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of torch.serialization
_STORAGES: dict[str, Optional[torch.dtype]] = {
    'torch.storage.UntypedStorage': None, 'torch.FloatStorage': torch.float32, 'torch.DoubleStorage': torch.float64,
    'torch.HalfStorage': torch.float16, 'torch.BFloat16Storage': torch.bfloat16, 'torch.ByteStorage': torch.uint8,
    'torch.CharStorage': torch.int8, 'torch.ShortStorage': torch.int16, 'torch.IntStorage': torch.int32,
    'torch.LongStorage': torch.int64, 'torch.BoolStorage': torch.bool, 'torch.ComplexFloatStorage': torch.complex64,
    'torch.ComplexDoubleStorage': torch.complex128,
}  # fmt: skip


def is_safetensors(start: bytes) -> bool:
    """Whether a file begins as safetensors do: with the length of a header, and the header."""
    return start[8:9] == b'{' and int.from_bytes(start[:8], 'little') < 1 << 32


def check_start(start: bytes) -> None:
    """See that a file begins as a checkpoint does.

    Args:
        start: its first `START_BYTES`, or all of it.

    Raises:
        CheckpointError: if it does not, saying what it is instead.
    """
    if not start:
        raise CheckpointError('the file is empty')
    if start.lstrip().startswith(b'<'):
        raise CheckpointError('it is a web page (HTML) and no weights: the address may need a login, or be gone')
    if start.startswith(b'version https://git-lfs'):
        raise CheckpointError('it is a pointer of Git LFS and no weights: get the file itself with `git lfs pull`')
    # A zip archive, or a pickle, as torch.save wrote them until 1.6
    if not start.startswith((b'PK', b'\x80')) and not is_safetensors(start):
        raise CheckpointError('it is no checkpoint: neither a file of torch.save nor of safetensors')


def read_zip(file: BinaryIO, budget: Budget, place: Callable[[Tensor], Tensor]) -> Any:
    """What a zip archive of torch.save holds. The checksum of every record that is read is checked.

    Args:
        file: seekable, of the whole file.
        place: from a tensor on the CPU to one on the device wanted.

    Raises:
        CheckpointError, Exception: see `unpickle`.
    """
    with zipfile.ZipFile(_DirectoryLimit(file, budget)) as archive:
        records = {info.filename: info for info in archive.infolist()}
        folder = next(iter(records), '').partition('/')[0]
        if f'{folder}/constants.pkl' in records:
            raise Forbidden(['to run a TorchScript program'])
        order = b'little'
        if f'{folder}/byteorder' in records:
            order = _read_record(archive, records[f'{folder}/byteorder'], budget).numpy().tobytes()
        if order not in (b'little', b'big'):
            raise ValueError(f'bytes in the order {order[:20]!r}')
        swap = order.decode() != sys.byteorder
        storages: dict[str, Storage] = {}

        def storage_of(persistent_id: Any) -> Storage:
            key, dtype, number_of_bytes = _parse_id(persistent_id)
            if key not in storages:
                data = _read_record(archive, records[f'{folder}/data/{key}'], budget, number_of_bytes)
                storages[key] = Storage(_checked(data, dtype, swap), dtype)
            return storages[key]

        pickled = _read_record(archive, records[f'{folder}/data.pkl'], budget)
        return as_plain(unpickle(io.BytesIO(_bytes_of(pickled)), budget, storage_of), budget, place)


def read_legacy(file: BinaryIO, budget: Budget, place: Callable[[Tensor], Tensor]) -> Any:
    """What a file of torch.save held until torch 1.6: see `read_zip`. It has no checksums."""
    file_bytes = file.seek(0, 2)
    file.seek(0)

    def no_storage(persistent_id: Any) -> Storage:
        raise ValueError('a storage in the head of the file')

    first = unpickle(file, budget, no_storage)
    if isinstance(first, dict) and isinstance(first.get('model'), dict):  # detectron2's, with arrays of numpy
        return as_plain(first, budget, place)
    if first != MAGIC_NUMBER:
        raise ValueError('a pickle, but none of torch.save')
    protocol, _ = unpickle(file, budget, no_storage), unpickle(file, budget, no_storage)  # the second is of its system
    if protocol != PROTOCOL:
        raise ValueError(f'another protocol than {PROTOCOL}')
    storages: dict[str, Storage] = {}

    def storage_of(persistent_id: Any) -> Storage:
        key, dtype, number_of_bytes = _parse_id(persistent_id)
        if key not in storages:
            if number_of_bytes > file_bytes - file.tell():
                raise ValueError(f'a storage of {number_of_bytes} bytes, more than the file has')
            budget.charge(number_of_bytes)
            storages[key] = Storage(torch.empty(number_of_bytes, dtype=torch.uint8), dtype)
        return storages[key]

    result = unpickle(file, budget, storage_of)
    keys = unpickle(file, budget, no_storage)
    if sorted(keys) != sorted(storages):
        raise ValueError('other storages than its tensors have')
    for key in keys:
        data, dtype = storages[key]
        (numel,) = struct.unpack('<q', file.read(8))
        if numel * _item_bytes(dtype) != len(data) or file.readinto(_bytes_of(data)) != len(data):  # type: ignore[attr-defined]
            raise ValueError(f'a storage of {numel} numbers, where {len(data)} bytes were expected')
        _checked(data, dtype, sys.byteorder == 'big')
    return as_plain(result, budget, place)


class _DirectoryLimit:
    """A file that limits how large a directory zipfile may read, because zipfile makes objects of all entries."""

    def __init__(self, file: BinaryIO, budget: Budget):
        self._file = file
        self._limit = max(budget.limit // ENTRY_TIMES, CHUNK_BYTES)
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._budget = budget

    def read(self, number_of_bytes: int = -1) -> bytes:
        if number_of_bytes > self._limit:
            self._budget.charge(ENTRY_TIMES * number_of_bytes)
        return self._file.read(number_of_bytes)


def _bytes_of(data: Tensor) -> memoryview:
    """The memory of a tensor of bytes."""
    return memoryview(cast(Any, data.numpy()))


def _read_record(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget, expected: Optional[int] = None
) -> Tensor:
    """The bytes of a record, uint8; their checksum is right."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f'{info.filename} is compressed as torch.save does not')
    if expected is not None and info.file_size != expected:
        raise ValueError(f'{info.filename} has {info.file_size} bytes, {expected} were expected')
    budget.charge(info.file_size)
    data = torch.empty(info.file_size, dtype=torch.uint8)
    view, end = _bytes_of(data), 0
    with archive.open(info) as record:
        while chunk := record.read(CHUNK_BYTES):  # never more than its size; checks the sum at the end
            view[end : end + len(chunk)] = chunk
            end += len(chunk)
    if end != info.file_size:
        raise ValueError(f'{info.filename} ends early')
    return data


def _parse_id(persistent_id: Any) -> tuple[str, Optional[torch.dtype], int]:
    """Key, kind of numbers and number of bytes of the storage that a pickle refers to."""
    kind, storage, key, _, numel, *view = persistent_id
    if kind != 'storage' or type(storage) is not Name or any(view):
        raise ValueError('it refers to what is no storage')
    if storage.text not in _STORAGES:
        raise Forbidden([storage.text])
    if type(key) is not str or type(numel) is not int or numel < 0:
        raise ValueError('it refers to a storage by what is no key, or no size')
    dtype = _STORAGES[storage.text]
    return key, dtype, numel * _item_bytes(dtype)


def _item_bytes(dtype: Optional[torch.dtype]) -> int:
    return 1 if dtype is None else dtype.itemsize


def _checked(data: Tensor, dtype: Optional[torch.dtype], swap: bool) -> Tensor:
    """Bytes in this machine's order, if that is known; truth values that are none are undefined behaviour in C++."""
    if dtype == torch.bool and len(data) and data.max() > 1:
        raise ValueError('truth values other than 0 and 1')
    if swap and _item_bytes(dtype) > 1:
        assert dtype is not None
        data.untyped_storage().byteswap(dtype)
    return data
