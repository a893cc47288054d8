"""The way to compute a layer: the compiled library, a Triton kernel for attention, or plain torch.

A layer calls the functions once in a forward. A refusal is a reason in a sentence.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Optional

import torch
from torch import Tensor

from ..compat import (
    constant_when_compiled,
    has_global_hooks,
    is_exporting,
    is_transformed,
    num_dispatch_modes,
)
from .native.availability import why_not_in
from .native.memory import is_readable

BACKENDS = ('auto', 'native', 'torch', 'triton')
# Backends of earlier releases, with replacements.
REPLACED = {
    'eager': "write backend='torch'",
    'graph': "write backend='torch'",
    'reference': "the literal algorithms are in tests/helpers/reference.py; write backend='torch'",
}


def recorder_of(x: Tensor) -> Optional[str]:
    """Return the name of the recorder or transform of operations on `x`; None: operations just run."""
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


def why_not_native(x: Tensor) -> Optional[str]:
    """Return why the library computes no layer for maps of the device, dtype and mode of `x`; None: no reason."""
    if x.device.type != 'cpu':
        return f'The compiled library is for CPUs, not {x.device.type}.'
    recorder = recorder_of(x)
    if recorder is not None:
        return f'The compiled library is no part of what {recorder} records.'
    if has_global_hooks():
        return 'The compiled library calls no modules, and a hook on all modules is registered.'
    if num_dispatch_modes():
        return 'The compiled library calls no operators of torch, and a TorchDispatchMode receives them.'
    if not torch.backends.mkldnn.enabled:
        return 'torch.backends.mkldnn is switched off, and with it the compiled library.'
    if not is_readable(x):
        return f'The compiled library reads memory, and this {type(x).__name__} has its numbers elsewhere.'
    return why_not_in(linear_dtype(x))
