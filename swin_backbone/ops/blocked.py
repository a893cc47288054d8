"""Running a block over its windows: all at once, or strip by strip so that what lies between stays in cache.

Layout: B batch, H W height and width of a map, C channels, T tokens.
"""

from typing import Callable, Optional, Union

import torch
from torch import Tensor

from .windows import Strip, WindowGrid

# Tokens of a strip times channels of the map: a strip's widest tensor, the hidden map of the MLP, is 4 of these.
AUTO_STRIP_ELEMENTS = 2048 * 96
AUTO_STRIP_MIN_TOKENS = 512  # below, GEMMs are too small to run at full speed

StripTokens = Union[int, str, None]


def over_windows(
    tokens_fn: Callable[[Tensor, Strip], Tensor], x_BHWC: Tensor, grid: WindowGrid, strip_tokens: Optional[int]
) -> Tensor:
    """Apply `tokens_fn(x, strip)`, which mixes tokens only inside windows, to a batch of maps.

    Args:
        tokens_fn: gets tokens with the channels last, shaped (B, H*W, C) over the whole map and (T, C) in a
            strip, and returns as many.
        strip_tokens: places (tokens and padding) of one strip at the most, at least one window; None: the whole
            map at once. Strips write into one output and keep no graph, so they are for forward alone.
    """
    B, H, W, C = x_BHWC.shape
    if strip_tokens is None:
        return tokens_fn(x_BHWC.reshape(B, H * W, C), grid.whole()).view(B, H, W, C)
    x_TC = x_BHWC.reshape(B * H * W, C)
    out_TC = None
    for strip in grid.strips(max(1, strip_tokens // grid.window_area)):
        y_TC = tokens_fn(x_TC.index_select(0, strip.tokens_T), strip)
        if out_TC is None:  # only now is the dtype known: under autocast it need not be x's
            out_TC = y_TC.new_empty(x_TC.shape)
        out_TC.index_copy_(0, strip.tokens_T, y_TC)
    return out_TC.view(B, H, W, C)


def choose_strip_tokens(strip_tokens: StripTokens, x_BHWC: Tensor, grid: WindowGrid, needs_grad: bool) -> Optional[int]:
    """How many tokens a strip gets: 'auto' decides by device and size; None means no strips.

    On an accelerator one launch over all windows is best; torch.compile, export and tracing need one graph;
    and a gradient needs the graph that strips do not keep.
    """
    if strip_tokens is None or needs_grad or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    if strip_tokens == 'auto':
        if x_BHWC.device.type != 'cpu':
            return None
        strip_tokens = max(AUTO_STRIP_MIN_TOKENS, AUTO_STRIP_ELEMENTS // x_BHWC.shape[-1])
    return strip_tokens if strip_tokens < grid.num_windows * grid.window_area else None
