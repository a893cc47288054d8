"""The plan of attention inside windows by the Triton kernel, in the place of torch's.

Layout: B batch, H W height and width of a map, T tokens, C channels, N places of a window, h heads.
"""

from functools import partial
from typing import Any, Union

import torch
from torch import Tensor, nn

from ...models.layers.attention import WindowAttention
from ...models.windows import Windows
from ...modes import find_linear_dtype
from ...replace import Plan, Reason
from ..changes import is_changed
from .availability import find_reason_against_attention


def plan_attention(attention: Any, x_BHWC: Tensor, windows: Windows) -> Union[Plan, Reason]:
    """See `replace.Replacement`."""
    reason = find_reason_against_attention(attention, x_BHWC, windows)
    return partial(run_attention, attention) if reason is None else reason


def run_attention(attention: Any, x_BHWC: Tensor, windows: Windows) -> Tensor:
    """Run attention, see `BaseAttention.forward`. The kernel reads windows from the map, without a partition."""
    from .operators import attend_in_windows

    (B, H, W, C), (Wh, Ww) = x_BHWC.shape, windows.window_size
    qkv_T3C = attention.project(x_BHWC.reshape(B * H * W, C))
    # A graph for all sizes must not compare sizes with the window.
    is_padded = torch.compiler.is_compiling() or H % Wh or W % Ww
    padding_3C = _project_padding(attention, x_BHWC) if is_padded else qkv_T3C.new_zeros(qkv_T3C.shape[1])
    sizes = B, H, W, [Wh, Ww], list(windows.shift), windows.mask_padding
    bias_hNN = attention.position_bias(windows.window_size)
    y_TC: Tensor = attend_in_windows(qkv_T3C, padding_3C, bias_hNN, *sizes, attention.scale)[0]
    return attention.proj_drop(attention.proj(y_TC.view(B, H, W, y_TC.shape[-1])))


def _project_padding(attention: Any, x_BHWC: Tensor) -> Tensor:
    """Return query, key and value of padding, which is zeros, concatenated: (3C,)."""
    qkv = attention.qkv
    is_linear = type(attention).project is WindowAttention.project and type(qkv) is nn.Linear and not is_changed(qkv)
    if is_linear and qkv.bias is not None:
        return qkv.bias.to(find_linear_dtype(x_BHWC))
    padding_3C = attention.project(x_BHWC.new_zeros(1, x_BHWC.shape[-1]))[0]
    return padding_3C
