"""Attention inside windows by the Triton kernel, in the place of torch's.

Layout: B batch, H W height and width of a map, T tokens, C channels, N places of a window, h heads.
"""

import warnings
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...compat import constant_when_compiled
from ...models.windows import Windows
from ...modes import linear_dtype, recorder_of
from ...replace import refuse
from .trial import why_unfit, why_unusable


def can_run(attention: Any, x_BHWC: Tensor, windows: Windows, raise_error: bool = False) -> bool:
    """See `replace.Replacement`. 'auto' takes the kernel on CUDA, except in float32 without TF32.

    Tensor cores do not compute in plain float32.
    """
    if not raise_error and x_BHWC.device.type != 'cuda':
        return False
    dtype, head_dim = linear_dtype(x_BHWC), x_BHWC.shape[-1] // attention.num_heads
    if not raise_error and dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32:
        return False
    dropout = attention.attn_drop_rate if attention.training else 0.0
    unfit = why_unfit(recorder_of(x_BHWC), dtype, windows.window_size, dropout)
    reason = unfit or why_unusable(x_BHWC.device, dtype, windows.window_size, head_dim)
    if reason is not None and unfit is None and not raise_error:
        _warn_once(f"backend='auto' computes without the Triton kernel: {reason}")
    return reason is None or refuse('triton', reason, raise_error)


def run(attention: Any, x_BHWC: Tensor, windows: Windows) -> Tensor:
    """Run attention, see `models.attention.attend`. The kernel reads windows from the map, without a partition."""
    from .attention import attend_in_windows

    bias_hNN = attention.position_bias(windows.window_size)
    B, H, W, C = x_BHWC.shape
    Wh, Ww = windows.window_size
    # A graph for all sizes must not compare sizes with the window.
    if torch.compiler.is_compiling() or H % Wh or W % Ww:
        qkv_T3C, row_13C = attention.project(F.pad(x_BHWC.reshape(B * H * W, C), (0, 0, 0, 1))).split((B * H * W, 1))
        padding_3C = row_13C[0]
    else:
        qkv_T3C = attention.project(x_BHWC.reshape(B * H * W, C))
        padding_3C = qkv_T3C.new_zeros(qkv_T3C.shape[1])
    sizes = B, H, W, [Wh, Ww], list(windows.shift), windows.mask_padding
    y_TC: Tensor = attend_in_windows(qkv_T3C, padding_3C, bias_hNN, *sizes, attention.scale)[0]
    return y_TC.view(B, H, W, y_TC.shape[-1])


@constant_when_compiled
def _warn_once(message: str) -> None:
    _warn(message)


@lru_cache(maxsize=256)
def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
