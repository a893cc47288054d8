"""The modes of torch around a call: recorders of operations, and autocast."""

from contextlib import AbstractContextManager, nullcontext
from typing import Optional

import torch
from torch import Tensor

from .compat import constant_when_compiled, is_exporting, is_transformed


def recorder_of(x: Tensor) -> Optional[str]:
    """Return the name of what records or transforms operations on `x`; None: operations run eagerly."""
    if torch.compiler.is_compiling():
        return 'torch.export' if is_exporting() else 'torch.compile'
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # untyped in torch
        return 'torch.jit.trace'
    if x.device.type == 'meta':
        return 'the meta device'
    return 'torch.func' if is_transformed() else None


def autocast_dtype(device_type: str) -> Optional[torch.dtype]:
    """Return the dtype of linear layers under autocast; None: autocast is off, or the device has no autocast."""
    if _has_autocast(device_type) and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


@constant_when_compiled  # torch.compile of torch 2.11 cannot trace the call
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off: operations keep the dtypes of their inputs."""
    return nullcontext() if autocast_dtype(device_type) is None else torch.autocast(device_type, enabled=False)


def linear_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which linear layers compute with `x` now."""
    return autocast_dtype(x.device.type) or x.dtype
