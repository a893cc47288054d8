"""Relative positions of the places of a window, the position bias, and position tables resized.

Layout: T tokens, C channels, R offsets between places of a window, N places of a window, h heads.
"""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .compat import cached_table

Size = tuple[int, int]  # (height, width)


@cached_table
def relative_position_index(window_size: Size, table_window: Size, device: torch.device) -> Tensor:
    """Return the row of the bias table for each pair of places (query, key) of a window: (N*N,).

    The table of `table_window` holds every offset from (1 - Wh, 1 - Ww) to (Wh - 1, Ww - 1); a smaller
    `window_size` uses the table's centre.
    """
    height, width = table_window
    y, x = (torch.arange(length, device=device) for length in window_size)
    place_N = (y[:, None] * (2 * width - 1) + x).flatten()
    centre = (height - 1) * (2 * width - 1) + width - 1  # the row of the offset (0, 0)
    return (place_N[:, None] - place_N + centre).flatten()


def resize_absolute_position_embedding(embedding_1TC: Tensor, source: Size, target: Size) -> Tensor:
    """Resize an embedding of source (height, width) tokens to `target`, bicubic: (1, T', C)."""
    if all(isinstance(side, int) for side in target) and source == target:  # a comparison of symbols limits a graph
        return embedding_1TC
    embedding_1CHW = embedding_1TC.transpose(1, 2).unflatten(2, source)
    resized = F.interpolate(embedding_1CHW, size=target, mode='bicubic', align_corners=False)
    return resized.flatten(2).transpose(1, 2)


def resize_relative_position_bias_table(table_Rh: Tensor, source_window: Size, target_window: Size) -> Tensor:
    """Resize a bias table to another window, bicubic, each head by itself: (R', h), R' = (2Wh-1)*(2Ww-1)."""
    if source_window == target_window:
        return table_Rh
    source = (2 * source_window[0] - 1, 2 * source_window[1] - 1)
    target = (2 * target_window[0] - 1, 2 * target_window[1] - 1)
    table_1hYX = table_Rh.t().unflatten(1, source)[None]
    resized = F.interpolate(table_1hYX, size=target, mode='bicubic', align_corners=False)
    return resized[0].flatten(1).t().contiguous()


@cached_table
def log_spaced_coordinates(window_size: Size, pretrained_window: Size, device: torch.device) -> Tensor:
    """The offset of each row of a bias table on a log scale (Liu et al. 2022, equation 4): (R, 2) in float64.

    As in microsoft/Swin-Transformer, the largest offset of `pretrained_window` is 8 before the logarithm and 1.057
    behind it; offsets of a larger window reach further.
    """
    axes = []
    for length, pretrained in zip(window_size, pretrained_window):
        offsets = torch.arange(1 - length, length, device=device, dtype=torch.float64) * (8 / max(1, pretrained - 1))
        axes.append(offsets.sign() * torch.log2(offsets.abs() + 1) / math.log2(8))
    return torch.cartesian_prod(*axes)


def relative_position_bias(table_Rh: Tensor, window_size: Size, table_window: Optional[Size] = None) -> Tensor:
    """Return the bias (h, N, N) of a window, from a table ((2Wh-1)*(2Ww-1), h).

    Args:
        table_window: the window of the table; a smaller `window_size` reads the table's centre.
    """
    N = window_size[0] * window_size[1]
    index = relative_position_index(window_size, table_window or window_size, table_Rh.device)
    return table_Rh.t().index_select(1, index).view(-1, N, N)
