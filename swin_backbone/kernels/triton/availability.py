"""Whether the Triton kernels compute an attention: by its settings, and by a trial of each variant on the device."""

import warnings
from collections.abc import Callable
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor

from ...compat import allows_tf32, constant_when_compiled, find_number
from ...models.windows import Windows
from ...modes import find_linear_dtype, find_tracer
from ...replace import Reason
from ...sizes import Size, format_size
from .tiles import INT32_OFFSETS, Tiles, Variant, is_interpreted

KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_WINDOW = 16  # the compiler takes minutes for larger tiles
Result = TypeVar('Result')
SMALLEST_CAPABILITY = (8, 0)  # Triton's compiler ends the process on some older GPUs


FAULTS: dict[Variant, Optional[str]] = {}  # of each tried variant, in a sentence; None: it passed
WARNED: set[tuple[Any, ...]] = set()  # device, dtype, head_dim and window_size of variants with a warning


def find_reason_against_attention(attention: Any, x: Tensor, windows: Windows) -> Optional[Reason]:
    """Return why the Triton kernels do not compute an attention for maps `x`; None: they do.

    Under 'auto' the kernels compute only on CUDA, and float32 only with TF32: tensor cores have no plain float32. If a
    kernel fails in its trial on a CUDA device, one warning gives the reason. See `replace.Replacement`.

    Args:
        attention, x, windows: see `BaseAttention.forward`.
    """
    dtype, is_chosen = find_linear_dtype(x), attention.backend == 'triton'
    if not is_chosen and x.device.type != 'cuda':
        return 'The kernel is for CUDA.'
    if not is_chosen and dtype == torch.float32 and not allows_tf32():
        return 'Without TF32, tensor cores multiply no float32.'
    Wh, Ww = (find_number(side) for side in windows.window_size)
    if Wh is None or Ww is None:
        return 'In a graph the kernel takes windows of one size, and these are of any size.'
    dropout = attention.attn_drop_rate if attention.training else 0.0
    reason = _find_reason_against_settings(find_tracer(x), dtype, (Wh, Ww), dropout)
    if reason is None:
        (B, H, W, C), mask_padding, is_wide = x.shape, windows.mask_padding, False
        if not torch.compiler.is_compiling():  # a graph must not compare sizes; its operator checks again
            mask_padding = mask_padding and bool(H % Wh or W % Ww)
            is_wide = 3 * B * H * W * C >= INT32_OFFSETS
        device_and_sizes = x.device, dtype, C // attention.num_heads, (Wh, Ww)
        reason = _find_call_fault(*device_and_sizes, windows.shift, mask_padding, is_wide)
        if reason is not None and not is_chosen:
            _warn_once(*device_and_sizes, reason)
    return reason


def _find_reason_against_settings(
    tracer: Optional[str], dtype: torch.dtype, window_size: Size, dropout: float
) -> Optional[Reason]:
    """Return why the kernels compute an attention on no GPU; None: they may."""
    if tracer not in (None, 'torch.compile', 'torch.export'):
        return f'The kernel has no version for {tracer}.'
    if dropout:
        return f'The kernel drops no attention weights, and attn_drop_rate is {dropout}.'
    if dtype not in KERNEL_DTYPES:
        return f'The kernel takes half precision and float32, not {dtype}.'
    if max(window_size) > LARGEST_WINDOW:
        return f'The kernel takes windows up to {LARGEST_WINDOW}x{LARGEST_WINDOW}, not {format_size(window_size)}.'
    return None


@constant_when_compiled
def _find_call_fault(device: torch.device, dtype: torch.dtype, *others: Any) -> Optional[str]:
    return find_fault(Variant._make([device, dtype, *others, dtype == torch.float32 and allows_tf32()]))


def find_fault(variant: Variant) -> Optional[str]:
    """Return the fault of a variant on its device, found in a trial before the first use; None: it has no fault."""
    if variant not in FAULTS:
        FAULTS[variant] = _run_trial(variant)
    return FAULTS[variant]


def _run_trial(variant: Variant) -> Optional[str]:
    if not is_interpreted():
        if variant.device.type != 'cuda':
            return (
                f'The kernel needs a CUDA device, not {variant.device.type}, or TRITON_INTERPRET=1 to be interpreted.'
            )
        capability = torch.cuda.get_device_capability(variant.device)
        if capability < SMALLEST_CAPABILITY:
            return f'The kernel needs a GPU of compute capability {SMALLEST_CAPABILITY}, and this one has {capability}.'
    try:
        from .trial import compare_with_torch

        error = compare_with_torch(variant)
    except torch.cuda.OutOfMemoryError:  # the kernel may be right
        raise
    except Exception as exception:
        return _describe(exception)
    return error and f'On this device the kernel differs from torch: {error}.'


def launch_or_fall_back(launch: Callable[[Tiles], Result], fallback: Callable[[], Result], tiles: Tiles) -> Result:
    """Return the result of `launch`, or of `fallback` if a launch of the variant fails or has failed.

    A failure warns once, and no later plan has the variant.
    """
    variant = tiles.variant
    if find_fault(variant) is None:
        try:
            return launch(tiles)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as exception:
            FAULTS[variant] = _describe(exception)
    _warn_once(*variant[:4], FAULTS[variant])
    return fallback()


def _describe(exception: Exception) -> str:
    """Return a failure in a sentence. Errors of Triton's compiler have no common type."""
    first_line = (str(exception).strip() or 'no message').splitlines()[0]
    return f'The kernel does not run ({type(exception).__name__}: {first_line}).'


@constant_when_compiled
def _warn_once(*variant_and_reason: Any) -> None:
    *variant, reason = variant_and_reason
    if tuple(variant) not in WARNED:
        WARNED.add(tuple(variant))
        warnings.warn(f'Torch computes attention in place of the Triton kernel: {reason}', stacklevel=4)
