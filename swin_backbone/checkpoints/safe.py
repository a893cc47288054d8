"""Reading a checkpoint file without executing anything that is in it."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Optional, Union

import numpy as np
import safetensors.torch
import torch
from mmengine.logging import HistoryBuffer
from mmengine.utils import digit_version
from torch import Tensor

from .download import fetch
from .errors import CheckpointError

_trusted = False


def trust_checkpoints(trusted: bool) -> None:
    """Whether this process loads checkpoints unsafely where nothing else is said: the tools' --unsafe-load."""
    global _trusted
    _trusted = trusted


def are_checkpoints_trusted() -> bool:
    return _trusted


def read_checkpoint(checkpoint: Union[str, Path], map_location: Any = 'cpu', unsafe_load: Optional[bool] = None) -> Any:
    """What a checkpoint file holds: a dict, if it is one of this field.

    Args:
        checkpoint: path, file://, http:// or https:// address; a file of `torch.save` or of safetensors, which its
            contents tell. What is downloaded is kept in the cache folder of torch.hub.
        map_location: see `torch.load`.
        unsafe_load: let what is pickled in the file run whatever it wants. Default: what the process was told, False.

    Raises:
        CheckpointError: if there is no such file, it is none or not whole, or it wants to execute something.
    """
    unsafe_load = _trusted if unsafe_load is None else unsafe_load
    path = fetch(str(checkpoint))
    try:
        return _read(path, map_location, unsafe_load)
    except CheckpointError as error:
        raise CheckpointError(f'checkpoint {str(checkpoint)!r}: {error}') from error.__cause__


def _read(path: Path, map_location: Any, unsafe_load: bool) -> Any:
    with path.open('rb') as file:
        start = file.read(512)
    if not start:
        raise CheckpointError('the file is empty')
    if start[8:9] == b'{' and int.from_bytes(start[:8], 'little') < 1 << 32:  # the length of a header, and the header
        return _read_safetensors(path, map_location)
    if start.lstrip().startswith(b'<'):
        raise CheckpointError('it is a web page (HTML) and no weights: the address may need a login, or be gone')
    if start.startswith(b'version https://git-lfs'):
        raise CheckpointError('it is a pointer of Git LFS and no weights: get the file itself with `git lfs pull`')
    if not start.startswith((b'PK', b'\x80')):  # a zip archive, or a pickle, as torch.save wrote them until 1.6
        raise CheckpointError('it is no checkpoint: neither a file of torch.save nor of safetensors')
    return _read_torch(path, map_location, unsafe_load)


def _read_safetensors(path: Path, map_location: Any) -> dict[str, Tensor]:
    try:
        tensors = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f'the file is truncated or damaged ({_first_sentence(error)})') from error
    return {key: tensor.to(map_location or 'cpu') for key, tensor in tensors.items()}


def _read_torch(path: Path, map_location: Any, unsafe_load: bool) -> Any:
    try:
        # The open file, not its path: torch takes what is named .safetensors for that.
        with path.open('rb') as file, safe_globals():
            return torch.load(file, map_location=map_location, weights_only=not unsafe_load)
    except MemoryError:
        raise
    except Exception as error:  # torch, zipfile and pickle raise any kind for a file that is not one of theirs
        message = str(error)
        wanted = re.findall(r'GLOBAL ([\w.]+)', message)
        if wanted:
            raise CheckpointError(_refusal(path, f'it wants {", ".join(_all_wanted(path) or wanted)}')) from error
        if 'TorchScript' in message:
            raise CheckpointError(_refusal(path, 'it is a TorchScript program')) from error
        if 'Unsupported operand' in message:
            raise CheckpointError(_refusal(path, 'it is pickled as torch.save does not pickle')) from error
        if unsafe_load and isinstance(error, (ImportError, AttributeError)):
            raise CheckpointError(f'it needs what is not installed here ({_first_sentence(error)})') from error
        raise CheckpointError(f'the file is truncated, damaged or no checkpoint ({_first_sentence(error)})') from error


def _all_wanted(path: Path) -> list[str]:
    """Everything a checkpoint wants to call, where torch can tell; its own error names the first."""
    with contextlib.suppress(Exception), safe_globals():
        return sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(str(path))))
    return []


def _refusal(path: Path, why: str) -> str:
    return (
        f'refused, because it is more than weights ({why}) and could execute anything; if you trust whoever made it, '
        f'make weights of it with `python tools/convert_checkpoint.py {path} OUT --to mmdet --unsafe-load` and use '
        'OUT, or pass --unsafe-load (in Python unsafe_load=True)'
    )


@contextlib.contextmanager
def safe_globals() -> Iterator[None]:
    """Let torch load mmengine's own checkpoints with weights_only=True, inside this context.

    Beside tensors they hold numpy's scalars and arrays and the log's HistoryBuffers, and nothing else is let in.
    Before torch 2.6 there is no such list, and checkpoints that need it are refused.
    """
    if digit_version(torch.__version__) < digit_version('2.6'):
        yield
        return
    multiarray = np.core.multiarray if np.__version__ < '2' else np._core.multiarray
    dtypes = {type(np.dtype(kind)) for kind in np.typecodes['All'] if kind not in 'OV'}
    # numpy 2 moved these; a file names them as the numpy did that wrote it
    functions = [
        (function, f'numpy.{core}.multiarray.{function.__name__}')
        for core in ('core', '_core')
        for function in (multiarray.scalar, multiarray._reconstruct)
    ]
    getattr_only = (_method_of_history_buffer, 'builtins.getattr')
    allowed = [HistoryBuffer, np.dtype, np.ndarray, *dtypes, *functions, getattr_only]
    with torch.serialization.safe_globals(allowed):
        yield


def _method_of_history_buffer(owner: type, name: str) -> Callable:
    """What a pickled HistoryBuffer needs of getattr, and no more than that."""
    if owner is not HistoryBuffer or name.startswith('_'):
        raise UnpicklingError(f'GLOBAL builtins.getattr of {owner!r} and {name!r}')
    return getattr(owner, name)


def _first_sentence(error: Exception) -> str:
    sentence = re.split(r'\.\s|\n', str(error))[0]
    return f'{type(error).__name__}: {sentence[:200]}' if sentence else type(error).__name__
