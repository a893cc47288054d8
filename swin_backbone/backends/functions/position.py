"""The relative position bias of a window (Liu et al. 2021, equation 4), and the cache of what is made from sizes alone.

Layout: R offsets between places of a window, N places of a window, h heads.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Optional

import torch
from torch import Tensor

from ...compat import fake_mode
from ...windows import position
from ...windows.grid import Size

CACHED_TABLES = 64  # a Swin at one input size uses 8 grids: two shifts in each of four stages


def bounded_cache(build: Callable) -> Callable:
    """A bounded cache for index tables. Under torch.compile and export it calls the function directly.

    Fake tensors, which have no values, are kept for their own fake mode alone.
    """

    @lru_cache(maxsize=CACHED_TABLES)
    def cached(_fake_mode, *args):
        with torch.inference_mode(False):  # an inference tensor could not be saved for a later backward
            return build(*args)

    @wraps(build)
    def call(*args):
        return build(*args) if torch.compiler.is_compiling() else cached(fake_mode(), *args)

    call.cache_info, call.cache_clear = cached.cache_info, cached.cache_clear  # type: ignore[attr-defined]
    return call


relative_position_index = bounded_cache(position.relative_position_index)
log_spaced_coordinates = bounded_cache(position.log_spaced_coordinates)


def relative_position_bias(table_Rh: Tensor, window_size: Size, table_window: Optional[Size] = None) -> Tensor:
    """The bias (h, N, N) of a window, from a table ((2Wh-1)*(2Ww-1), h) made for windows of `table_window`."""
    (Wh, Ww), (table_height, table_width) = window_size, table_window or window_size
    has_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()  # which is the same with gradients and without
    if has_graph or not (torch.is_grad_enabled() and table_Rh.requires_grad):
        index = relative_position_index(window_size, (table_height, table_width), table_Rh.device)
        return table_Rh.t().index_select(1, index).view(-1, Wh * Ww, Wh * Ww)
    # The same as views, for the biases of a query are a window of the table, turned round: backward sums these windows
    # in order, where that of the lookup adds atomically on CUDA.
    table_hYX = table_Rh.t().unflatten(1, (2 * table_height - 1, 2 * table_width - 1))
    centre_hYX = table_hYX.narrow(1, table_height - Wh, 2 * Wh - 1).narrow(2, table_width - Ww, 2 * Ww - 1)
    return centre_hYX.unfold(1, Wh, 1).unfold(2, Ww, 1).flip(3, 4).reshape(-1, Wh * Ww, Wh * Ww)
