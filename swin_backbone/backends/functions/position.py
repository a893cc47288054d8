"""The relative position bias of a window (Liu et al. 2021, equation 4), and the cache of what is made from sizes alone.

Layout: R offsets between places of a window, N places of a window, h heads.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Optional, TypeVar

import torch
from torch import Tensor

from ...compat import fake_mode
from ...windows.grid import Size
from ...windows.position import log_spaced_coordinates, relative_position_index

Made = TypeVar('Made')

CACHED_TABLES = 64  # a Swin at one input size uses 8 grids: two shifts in each of four stages


def bounded_cache(build: Callable[..., Made]) -> Callable[..., Made]:
    """A bounded cache for what is made from sizes. torch.compile and export cannot look into it.

    Fake tensors have no values, and serve their own fake mode alone: the mode of now must be an argument of `build`.
    """

    @lru_cache(maxsize=CACHED_TABLES)
    def cached(*args: Any) -> Made:
        with torch.inference_mode(False):  # an inference tensor could not be saved for a later backward
            return build(*args)

    return cached


@bounded_cache
def cached_index(_fake_mode: Any, *sizes: Any) -> Tensor:
    """See `windows.position.relative_position_index`."""
    return relative_position_index(*sizes)


@bounded_cache
def cached_coordinates(_fake_mode: Any, *sizes: Any) -> Tensor:
    """See `windows.position.log_spaced_coordinates`."""
    return log_spaced_coordinates(*sizes)


def position_coordinates(window_size: Size, pretrained_window: Size, device: torch.device) -> Tensor:
    """`log_spaced_coordinates`, kept where nothing records a graph."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # of torch
        return log_spaced_coordinates(window_size, pretrained_window, device)
    return cached_coordinates(fake_mode(), window_size, pretrained_window, device)


def relative_position_bias(table_Rh: Tensor, window_size: Size, table_window: Optional[Size] = None) -> Tensor:
    """The bias (h, N, N) of a window, from a table ((2Wh-1)*(2Ww-1), h) made for windows of `table_window`."""
    (Wh, Ww), (table_height, table_width) = window_size, table_window or window_size
    # The same with gradients and without, and whatever has been kept before.
    recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    if recorded or not (torch.is_grad_enabled() and table_Rh.requires_grad):
        sizes = window_size, (table_height, table_width), table_Rh.device
        index = relative_position_index(*sizes) if recorded else cached_index(fake_mode(), *sizes)
        return table_Rh.t().index_select(1, index).view(-1, Wh * Ww, Wh * Ww)
    # The same as views, for the biases of a query are a window of the table, turned round: backward sums these windows
    # in order, where that of the lookup adds atomically on CUDA.
    table_hYX: Tensor = table_Rh.t().unflatten(1, (2 * table_height - 1, 2 * table_width - 1))
    centre_hYX = table_hYX.narrow(1, table_height - Wh, 2 * Wh - 1).narrow(2, table_width - Ww, 2 * Ww - 1)
    return centre_hYX.unfold(1, Wh, 1).unfold(2, Ww, 1).flip(3, 4).reshape(-1, Wh * Ww, Wh * Ww)
