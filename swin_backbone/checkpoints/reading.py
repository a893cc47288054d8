"""Read a checkpoint file without executing its contents.

Files of torch.save are read by the unpickler of `torch.load(weights_only=True)`, which builds tensors and plain Python
values only. Training scripts store two more kinds of values: numpy's numbers and arrays, and mmengine's HistoryBuffer.
The stand-ins below rebuild both from plain values.
"""

import os
import pickle
import re
import sys
import tarfile
import zipfile
from collections import Counter, OrderedDict
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, BinaryIO, Optional, Union

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray

from ..compat import make_unpickler
from .download import fetch
from .errors import CheckpointError, RefusedCheckpoint, name_in_errors
from .hugging_face import INDEX_SUFFIX, read_shards

START_BYTES = 512  # of a file, enough to tell its kind
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # first pickle in a file of torch before 1.6
NUMBER_KINDS = 'biufc'  # kinds of numpy's dtypes
_original_load = torch.load  # workbench/weights/loading.py puts another function in its place
_trusted: ContextVar[bool] = ContextVar('trusted', default=False)  # each thread has its own


def trust_checkpoints(trusted: bool) -> None:
    """Set the default of `unsafe_load` in this thread: the tools' --unsafe-load."""
    _trusted.set(trusted)


def are_checkpoints_trusted() -> bool:
    """Return the default of `unsafe_load` in this thread."""
    return _trusted.get()


def read_checkpoint(checkpoint: Union[str, Path], map_location: Any = 'cpu', unsafe_load: Optional[bool] = None) -> Any:
    """Return the contents of a checkpoint file, usually a dict.

    They are tensors, arrays of numbers, numbers, strings, lists, tuples, sets and dicts, and mmengine's HistoryBuffer,
    which is a dict of arrays in a process that has not imported mmengine. A file with other objects is refused. The
    checksums of a zip archive are checked.

    Args:
        checkpoint: path, file://, http:// or https:// address; a file of `torch.save`, safetensors or a pickle of
            detectron2, or a folder of transformers. The contents tell the kind. Downloads are kept in the cache folder
            of torch.hub.
        map_location: as of `torch.load`.
        unsafe_load: let the file execute code. Default: False, or the setting of `trust_checkpoints`.

    Raises:
        CheckpointError: for a missing, damaged or unsafe file, and for a file of another kind.
    """

    def read(path: Path) -> Any:
        if path.name.endswith(INDEX_SUFFIX):
            return read_shards(path, read)
        with path.open('rb') as file:
            if is_safetensors(file.read(START_BYTES)):
                return _read_safetensors(path, map_location)
            return read_open_file(file, str(checkpoint), map_location, unsafe_load)

    with name_in_errors(checkpoint):
        return fetch(str(checkpoint), read)


def read_open_file(file: BinaryIO, path: str, map_location: Any = 'cpu', unsafe_load: Optional[bool] = None) -> Any:
    """Return the contents of an open file of torch.save: see `read_checkpoint`. `path` is its name in an error."""
    file.seek(0)
    start = file.read(START_BYTES)
    file.seek(0)
    check_start(start)
    unsafe_load = are_checkpoints_trusted() if unsafe_load is None else unsafe_load
    try:
        if unsafe_load:
            return _original_load(file, map_location=map_location, weights_only=False)
        if start.startswith(b'PK'):
            _check_archive(file)
        elif (plain := _read_pickle(file)) is not None:
            return plain
        file.seek(0)
        return _replace_stand_ins(_original_load(file, map_location=map_location, **_make_load_arguments()), {})
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        name = re.search(r'GLOBAL ([\w.]+)', str(error))
        reason = re.search(r'WeightsUnpickler error:\s*(.+)', str(error))
        why = f'it contains {name[1]}' if name else reason[1] if reason else str(error).split('\n')[0]
        raise RefusedCheckpoint(
            f'refused, because it is more than weights ({why}) and could execute anything; if you trust whoever made '
            f'it, make weights of it with `python tools/convert_checkpoint.py {path} OUT --to mmdet --unsafe-load` and '
            'use OUT, or pass --unsafe-load (in Python unsafe_load=True)'
        ) from error
    except Exception as error:  # torch, zipfile and pickle raise any kind for a damaged file
        if unsafe_load and isinstance(error, (ImportError, AttributeError)):
            raise RefusedCheckpoint(f'it needs a module that is not installed ({_format_error(error)})') from error
        raise CheckpointError(f'the file is truncated, damaged or no checkpoint ({_format_error(error)})') from error


def is_safetensors(start: bytes) -> bool:
    """Return whether a file begins with the length of a header of safetensors and the header."""
    return start[8:9] == b'{' and int.from_bytes(start[:8], 'little') < 1 << 32


def check_start(start: bytes) -> None:
    """Check the first bytes of a file.

    Raises:
        CheckpointError: if they are not of a checkpoint, naming the kind of file.
    """
    if not start:
        raise CheckpointError('the file is empty')
    if start.lstrip().startswith(b'<'):
        raise CheckpointError('it is a web page (HTML) and no weights: the address may need a login, or be gone')
    if start.startswith(b'version https://git-lfs'):
        raise CheckpointError('it is a pointer of Git LFS and no weights: get the file itself with `git lfs pull`')
    if not start.startswith((b'PK', b'\x80')) and not is_safetensors(start):  # zip archive, pickle
        raise CheckpointError('it is no checkpoint: neither a file of torch.save nor of safetensors')


def _read_safetensors(path: Path, map_location: Any) -> dict[str, torch.Tensor]:
    device = map_location if isinstance(map_location, (str, torch.device)) else 'cpu'
    try:
        return {name: tensor.to(device) for name, tensor in safetensors.torch.load_file(path).items()}
    except Exception as error:  # of any kind
        raise CheckpointError(f'the file is truncated or damaged ({_format_error(error)})') from error


def _check_archive(file: BinaryIO) -> None:
    """Check a zip archive for what torch.load does not: checksums, compression, programs."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.filename.endswith('/constants.pkl') for member in members):
            raise pickle.UnpicklingError('a TorchScript program')
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise CheckpointError('its records are compressed, and may take any memory; save it again with torch.save')
        damaged = archive.testzip()
        if damaged:
            raise zipfile.BadZipFile(f'Bad CRC-32 for file {damaged!r}')


def _read_pickle(file: BinaryIO) -> Any:
    """Return the contents of a pickle of detectron2; None for a file of torch before 1.6."""
    if tarfile.is_tarfile(file):  # torch before 2.6 unpacks it
        raise CheckpointError('it is no checkpoint: a tar archive')
    file.seek(0)
    try:
        first = _Unpickler(file).load()
    except pickle.UnpicklingError as error:
        if 'GLOBAL' in str(error):
            raise
        raise ValueError(str(error)) from error  # no object is refused: the pickle is truncated or damaged
    if first == MAGIC_NUMBER:
        return None
    if not isinstance(first, dict) or not isinstance(first.get('model'), dict):
        raise ValueError('a pickle, but none of torch.save')
    return _replace_stand_ins(first, {})


def _format_error(error: Exception) -> str:
    sentence = re.split(r'\.\s|\n', str(error))[0]
    return f'{type(error).__name__}: {sentence[:200]}' if sentence else type(error).__name__


class _DType:
    """Stand-in for numpy.dtype: plain numbers only."""

    def __init__(self, kind: Any, *_: Any):
        self.dtype = np.dtype(str(kind))
        if self.dtype.kind not in NUMBER_KINDS:
            raise pickle.UnpicklingError(f'GLOBAL numpy.dtype {kind!r:.20}')

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])

    def read_numbers(self, data: Any) -> NDArray[Any]:
        """Return bytes as a new flat array, in native byte order."""
        return np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder('='))


class _Array:
    """Stand-in for numpy.ndarray; the state is the contents."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, data = state
        self.array: NDArray[Any] = dtype.read_numbers(data).reshape(shape, order='F' if by_columns else 'C')

    def restore(self) -> NDArray[Any]:
        return self.array


class _History:
    """Stand-in for mmengine's HistoryBuffer. The methods in the file are left out.

    In a process that has not imported mmengine, nothing reads a HistoryBuffer: it becomes a dict of its arrays.
    """

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def restore(self) -> Any:
        values, counts = (self.state[name].restore() for name in ('_log_history', '_count_history'))
        buffer = getattr(sys.modules.get('mmengine.logging.history_buffer'), 'HistoryBuffer', None)
        if buffer is None:
            return dict(log_history=values, count_history=counts)
        return buffer(values, counts, int(self.state.get('max_length', 1_000_000)))


def _no_method(owner: Any, name: Any) -> None:
    """Stand-in for getattr, by which a HistoryBuffer's pickle gets methods. They are left out."""
    if owner is not _History:
        raise pickle.UnpicklingError('GLOBAL builtins.getattr')


STAND_INS: dict[str, Any] = {  # by the name of the original
    'mmengine.logging.history_buffer.HistoryBuffer': _History,
    'builtins.getattr': _no_method,
    'builtins.bytes': lambda: b'',
    'numpy.dtype': _DType,
    'numpy.ndarray': _Array,
}
for _core in ('numpy.core', 'numpy._core'):  # numpy 1 and 2
    STAND_INS[f'{_core}.multiarray._reconstruct'] = lambda *_: _Array()
    STAND_INS[f'{_core}.multiarray.scalar'] = lambda dtype, data: dtype.read_numbers(data)[0]
    STAND_INS[f'{_core}.numeric._frombuffer'] = lambda data, dtype, shape, order: dtype.read_numbers(data).reshape(
        shape, order=order
    )
_PLAIN = {  # the unpickler of torch 2.4 lacks the last four
    'collections.OrderedDict': OrderedDict,
    'builtins.complex': complex,
    'builtins.set': set,
    'builtins.bytearray': bytearray,
    '_codecs.encode': lambda text, _: text.encode('latin1'),
}


class _Unpickler(pickle.Unpickler):
    """Python's unpickler, which finds the stand-ins alone."""

    def find_class(self, module: str, name: str) -> Any:
        path = f'{module}.{name}'
        if path not in STAND_INS and path not in _PLAIN:
            raise pickle.UnpicklingError(f'GLOBAL {path}')
        return STAND_INS.get(path) or _PLAIN[path]


@cache
def _make_load_arguments() -> dict[str, Any]:
    """Return the arguments of `torch.load` for its unpickler of weights, which finds the stand-ins besides.

    torch's own list of further globals belongs to the process, and is neither read nor changed. An environment variable
    of torch forbids other unpicklers; the stand-ins are missing then.
    """
    if os.environ.get('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '').lower() in ('1', 'y', 'yes', 'true'):
        return dict(weights_only=True)
    return dict(weights_only=False, pickle_module=make_unpickler({**_PLAIN, **STAND_INS}))


def _replace_stand_ins(value: Any, replaced: dict[int, tuple[Any, Any]]) -> Any:
    """Replace stand-ins by their values, inside lists and dicts too. Shared objects stay shared.

    Args:
        replaced: (value, result) by the id of the value, which has to stay alive.
    """
    if id(value) in replaced:
        return replaced[id(value)][1]
    result = value
    if isinstance(value, (_Array, _History)):
        result = value.restore()
    elif isinstance(value, (_DType, type, FunctionType)):
        raise pickle.UnpicklingError(f'GLOBAL {value}')
    replaced[id(value)] = value, result
    if type(value) in (dict, OrderedDict, Counter):
        for key, item in value.items():
            value[key] = _replace_stand_ins(item, replaced)
    elif type(value) is list:
        value[:] = [_replace_stand_ins(item, replaced) for item in value]
    elif type(value) is tuple:
        result = tuple(_replace_stand_ins(item, replaced) for item in value)
        replaced[id(value)] = value, result
    return result
