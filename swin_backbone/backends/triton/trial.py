"""Checks of the Triton kernels for a stage: shapes, and a single trial on the device."""

from functools import lru_cache
from typing import Optional

import torch

from ...compat import constant_when_compiled
from ...windows.grid import Size

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (16, 24, 32, 64)
LARGEST_WINDOW = 16
SMALLEST_CAPABILITY = (8, 0)  # the first with tensor cores for bfloat16


def why_unfit(
    recorder: Optional[str], dtype: torch.dtype, window_size: Size, head_dim: int, dropout: float
) -> Optional[str]:
    """Return why the kernel computes the attention on no GPU, in a sentence; None: some GPU can.

    Args:
        recorder: the name of the forward's recorder; None: no recorder.
        dropout: of attention weights.
    """
    if recorder not in (None, 'torch.compile', 'torch.export'):
        return f'The kernel has no version for {recorder}.'
    if dropout:
        return f'The kernel drops no attention weights, and attn_drop_rate is {dropout}.'
    if dtype not in DTYPES:
        return f'The kernel takes half precision and float32, not {dtype}.'
    if head_dim not in HEAD_DIMS:
        return f'The kernel takes heads of {", ".join(map(str, HEAD_DIMS))} channels, not {head_dim}.'
    if max(window_size) > LARGEST_WINDOW:
        return (
            f'The kernel takes windows up to {LARGEST_WINDOW}x{LARGEST_WINDOW}, not {window_size[0]}x{window_size[1]}.'
        )
    return None


@constant_when_compiled
def why_unusable(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int) -> Optional[str]:
    """Return why the kernels must not run on `device`; None: the kernels agreed with the reference in a trial."""
    allow_tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    try:
        return _try(device, dtype, tuple(window_size), head_dim, allow_tf32)
    except _Capturing:
        return 'The kernel was not compared with torch yet: run a forward before you capture a CUDA graph.'


class _Capturing(Exception):
    """Raised while a CUDA graph is captured, since the kernel cannot be tried then."""


@lru_cache(maxsize=256)
def _try(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int, allow_tf32: bool) -> Optional[str]:
    try:
        import triton  # noqa: F401

        from .check import why_wrong
        from .tiles import is_interpreted
    except Exception as error:  # whatever a broken installation raises
        return f'Triton cannot be imported ({type(error).__name__}: {error}).'
    if is_interpreted() and device.type != 'cpu':
        return 'TRITON_INTERPRET=1 runs the kernel on a CPU alone.'
    if not is_interpreted():
        if device.type != 'cuda':
            return f'The kernel needs a CUDA device, not {device.type}, or TRITON_INTERPRET=1 to be interpreted.'
        capability = torch.cuda.get_device_capability(device)
        if capability < SMALLEST_CAPABILITY:
            return f'The kernel needs a GPU of compute capability {SMALLEST_CAPABILITY}, and this one has {capability}.'
        if torch.cuda.is_current_stream_capturing():
            raise _Capturing
    try:
        wrong = why_wrong(device, dtype, window_size, head_dim)
    except torch.cuda.OutOfMemoryError:  # the kernel may be right
        raise
    except Exception as error:  # a compiler's errors have no common type
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ''
        return f'The kernel does not run ({type(error).__name__}: {first_line}).'
    return wrong and f'On this device the kernel differs from torch: {wrong}.'
