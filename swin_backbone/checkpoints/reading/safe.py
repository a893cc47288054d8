"""Reading a checkpoint file without executing anything that is in it."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Optional, Union

import safetensors.torch
import torch
from torch import Tensor, UntypedStorage

from ..download import fetch
from ..errors import CheckpointError, RefusedCheckpoint
from .budget import Budget
from .containers import START_BYTES, check_start, is_safetensors, read_legacy, read_zip
from .plain import Forbidden
from .rebuild import check_tensor
from .unpickle import BoundedFile

ENTRY_BYTES = 2048  # what a tensor takes beside its numbers once it is read; each has a `{` in a header of safetensors
_original_load = torch.load  # openmmlab/checkpointing/loading.py may put another in its place
_trusted = False


def trust_checkpoints(trusted: bool) -> None:
    """Whether this process loads checkpoints unsafely where nothing else is said: the tools' --unsafe-load."""
    global _trusted
    _trusted = trusted


def are_checkpoints_trusted() -> bool:
    return _trusted


def read_checkpoint(checkpoint: Union[str, Path], map_location: Any = 'cpu', unsafe_load: Optional[bool] = None) -> Any:
    """What a checkpoint file holds: a dict, if it is one of this field.

    In it are tensors, arrays of numbers, numbers, strings, and lists, tuples, sets and dicts of these, and mmengine's
    HistoryBuffer; anything else is refused. A zip archive's checksums are checked. Reading takes 64 MiB and 8 times the
    file's size at most; the environment variable SWIN_BACKBONE_LOAD_MIB says another limit.

    Args:
        checkpoint: path, file://, http:// or https:// address; a file of `torch.save` or of safetensors, which its
            contents tell. What is downloaded is kept in the cache folder of torch.hub.
        map_location: the device that tensors go to, as torch names it. Anything else `torch.load` takes is the CPU.
        unsafe_load: let what is pickled in the file run whatever it wants, and take what memory it wants. Default:
            what the process was told, False.

    Raises:
        CheckpointError: if there is no such file, it is no checkpoint or is truncated, it takes too much memory, or
            it wants to execute something.
    """

    def read(path: Path) -> Any:
        with path.open('rb') as file:
            if is_safetensors(file.read(START_BYTES)):
                return _read_safetensors(path, _placer(map_location))
            return read_file(file, str(checkpoint), map_location, unsafe_load)

    try:
        return fetch(str(checkpoint), read)
    except CheckpointError as error:
        kind = RefusedCheckpoint if isinstance(error, RefusedCheckpoint) else CheckpointError
        raise kind(f'checkpoint {str(checkpoint)!r}: {error}') from error.__cause__


def read_file(file: BinaryIO, path: str, map_location: Any = 'cpu', unsafe_load: Optional[bool] = None) -> Any:
    """What an open file of torch.save holds: see `read_checkpoint`. `path` is what a refusal calls it."""
    budget = Budget(file.seek(0, os.SEEK_END))
    file.seek(0)
    start = file.read(START_BYTES)
    file.seek(0)
    check_start(start)
    unsafe_load = _trusted if unsafe_load is None else unsafe_load
    read = read_zip if start.startswith(b'PK') else read_legacy
    try:
        if unsafe_load:
            return _original_load(file, map_location=map_location, weights_only=False)
        return read(file, budget, _placer(map_location))
    except (CheckpointError, MemoryError) as error:
        if isinstance(error, Forbidden):
            raise RefusedCheckpoint(_refusal(path, str(error))) from error
        raise
    except Exception as error:  # torch, zipfile and pickle raise any kind for a file that is not one of theirs
        if unsafe_load and isinstance(error, (ImportError, AttributeError)):
            raise RefusedCheckpoint(f'it needs what is not installed here ({_first_sentence(error)})') from error
        raise CheckpointError(f'the file is truncated, damaged or no checkpoint ({_first_sentence(error)})') from error


def _read_safetensors(path: Path, place: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    budget = Budget(path.stat().st_size)
    try:
        with path.open('rb') as file:
            header = BoundedFile(file, budget).read(int.from_bytes(file.read(8), 'little'))
        budget.charge(header.count(b'{') * ENTRY_BYTES)
        tensors = safetensors.torch.load_file(path)
        for tensor in tensors.values():
            check_tensor(tensor, budget)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f'the file is truncated or damaged ({_first_sentence(error)})') from error
    return {key: place(tensor) for key, tensor in tensors.items()}


def _placer(map_location: Any) -> Callable[[Tensor], Tensor]:
    """Puts tensors where `map_location` says; those that share their memory still do."""
    if map_location is None or not isinstance(map_location, (str, torch.device)) or str(map_location) == 'cpu':
        return lambda tensor: tensor
    moved: dict[int, UntypedStorage] = {}

    def place(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in moved:
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
            moved[storage.data_ptr()] = data.to(map_location).untyped_storage()
        there = torch.empty(0, dtype=tensor.dtype, device=map_location)
        return there.set_(moved[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride())

    return place


def _refusal(path: str, why: str) -> str:
    return (
        f'refused, because it is more than weights ({why}) and could execute anything; if you trust whoever made it, '
        f'make weights of it with `python tools/convert_checkpoint.py {path} OUT --to mmdet --unsafe-load` and use '
        'OUT, or pass --unsafe-load (in Python unsafe_load=True)'
    )


def _first_sentence(error: Exception) -> str:
    sentence = re.split(r'\.\s|\n', str(error))[0]
    return f'{type(error).__name__}: {sentence[:200]}' if sentence else type(error).__name__
