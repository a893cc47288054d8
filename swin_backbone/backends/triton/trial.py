"""The backends of attention inside windows, and the decision whether the Triton kernel computes it."""

import warnings
from functools import lru_cache
from typing import Optional

import torch

from ...compat import is_transformed
from ...windows.grid import Size

ATTENTION_BACKENDS = ('auto', 'sdpa', 'triton')

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (16, 24, 32, 64)
LARGEST_WINDOW = 16
SMALLEST_CAPABILITY = (8, 0)  # the first with tensor cores for bfloat16


def takes_kernel(
    backend: str,
    device: torch.device,
    dtype: torch.dtype,
    window_size: Size,
    head_dim: int,
    dropout: float,
    in_strips: bool,
) -> bool:
    """Whether the Triton kernel computes attention inside the windows of a whole map.

    Args:
        backend: 'triton' uses the kernel wherever it works. 'auto' uses it where it should be faster: on CUDA, but not
            in float32 without TF32, which cannot use tensor cores. If the kernel cannot be used although it was asked
            for or expected, one warning says why.
        in_strips: whether the map is run strip by strip.
    """
    if backend == 'sdpa' or device.type == 'meta' or torch.jit.is_tracing() or is_transformed():
        return False
    if backend == 'auto':
        if device.type != 'cuda':
            return False
        if dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32:
            return False
    unfit = _why_unfit(dtype, window_size, head_dim, dropout, in_strips)
    if unfit is None:
        reason = _why_not(device, dtype, window_size, head_dim)
    elif backend == 'triton':
        reason = unfit
    else:
        return False
    if reason is not None:
        _warn_once(f'attention_backend={backend!r} computes attention without the Triton kernel: {reason}')
    return reason is None


def _why_unfit(dtype: torch.dtype, window_size: Size, head_dim: int, dropout: float, in_strips: bool) -> Optional[str]:
    """Why the kernel does not support attention of this shape; None: it does."""
    if in_strips:
        return 'it takes whole maps, and strip_tokens asks for strips'
    if dropout:
        return f'it drops no attention weights, and attn_drop_rate is {dropout}'
    if dtype not in DTYPES:
        return f'it takes half precision and float32, not {dtype}'
    if head_dim not in HEAD_DIMS:
        return f'it takes heads of {", ".join(map(str, HEAD_DIMS))} channels, not {head_dim}'
    if max(window_size) > LARGEST_WINDOW:
        return f'it takes windows up to {LARGEST_WINDOW}x{LARGEST_WINDOW}, not {window_size[0]}x{window_size[1]}'
    return None


@torch.compiler.assume_constant_result
def _why_not(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int) -> Optional[str]:
    """Why the kernel must not be used here; None: it was tried once and agreed with the reference."""
    allow_tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    try:
        return _try(device, dtype, tuple(window_size), head_dim, allow_tf32)
    except _Capturing:
        return 'it was not compared with the reference yet: run a forward before you capture a CUDA graph'


class _Capturing(Exception):
    """Raised while a CUDA graph is captured, since the kernel cannot be tried then."""


@lru_cache(maxsize=256)
def _try(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int, allow_tf32: bool) -> Optional[str]:
    try:
        import triton  # noqa: F401

        from .check import why_wrong
        from .tiles import is_interpreted
    except Exception as error:  # whatever a broken installation raises
        return f'it cannot be imported ({type(error).__name__}: {error})'
    if is_interpreted() and device.type != 'cpu':
        return 'TRITON_INTERPRET=1 runs it on a CPU alone'
    if not is_interpreted():
        if device.type != 'cuda':
            return f'it needs a CUDA device, not {device.type}, or TRITON_INTERPRET=1 to be interpreted'
        capability = torch.cuda.get_device_capability(device)
        if capability < SMALLEST_CAPABILITY:
            return f'it needs a GPU of compute capability {SMALLEST_CAPABILITY}, and this one has {capability}'
        if torch.cuda.is_current_stream_capturing():
            raise _Capturing
    try:
        wrong = why_wrong(device, dtype, window_size, head_dim)
    except torch.cuda.OutOfMemoryError:  # it does not mean that the kernel is wrong
        raise
    except Exception as error:  # a compiler's errors have no common type
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ''
        return f'it does not run ({type(error).__name__}: {first_line})'
    return wrong and f'on this device it computes something else than the reference: {wrong}'


@torch.compiler.assume_constant_result
def _warn_once(message: str) -> None:
    _warned(message)


@lru_cache(maxsize=256)
def _warned(message: str) -> None:
    warnings.warn(message, stacklevel=4)
