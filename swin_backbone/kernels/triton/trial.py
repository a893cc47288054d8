"""Whether the Triton kernels compute a stage's attention: settings, and a single trial on the device."""

from functools import lru_cache
from typing import Optional

import torch

from ...compat import allows_tf32, constant_when_compiled
from ...windows.grid import Size

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_WINDOW = 16  # the compiler takes minutes for larger tiles
SMALLEST_CAPABILITY = (8, 0)  # Triton's compiler ends the process on some older GPUs


def why_unfit(recorder: Optional[str], dtype: torch.dtype, window_size: Size, dropout: float) -> Optional[str]:
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
    if max(window_size) > LARGEST_WINDOW:
        return (
            f'The kernel takes windows up to {LARGEST_WINDOW}x{LARGEST_WINDOW}, not {window_size[0]}x{window_size[1]}.'
        )
    return None


@constant_when_compiled
def why_unusable(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int) -> Optional[str]:
    """Return why the kernels must not run on `device`; None: the kernels agreed with torch in a trial."""
    allow_tf32 = dtype == torch.float32 and allows_tf32()
    return _try(device, dtype, tuple(window_size), head_dim, allow_tf32)


@lru_cache(maxsize=256)
def _try(device: torch.device, dtype: torch.dtype, window_size: Size, head_dim: int, allow_tf32: bool) -> Optional[str]:
    from .tiles import is_interpreted

    if not is_interpreted():
        if device.type != 'cuda':
            return f'The kernel needs a CUDA device, not {device.type}, or TRITON_INTERPRET=1 to be interpreted.'
        capability = torch.cuda.get_device_capability(device)
        if capability < SMALLEST_CAPABILITY:
            return f'The kernel needs a GPU of compute capability {SMALLEST_CAPABILITY}, and this one has {capability}.'
    try:
        from .check import why_wrong

        wrong = why_wrong(device, dtype, window_size, head_dim)
    except torch.cuda.OutOfMemoryError:  # the kernel may be right
        raise
    except Exception as error:  # a compiler's errors have no common type
        first_line = (str(error).strip() or 'no message').splitlines()[0]
        return f'The kernel does not run ({type(error).__name__}: {first_line}).'
    return wrong and f'On this device the kernel differs from torch: {wrong}.'
