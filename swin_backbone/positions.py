"""Offsets between the places of a window on a log scale, and resized position embeddings and bias tables.

Layout: T tokens, C channels, R offsets between places of a window, h heads, Y X rows and columns of a table of offsets.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .modes import cached_table
from .sizes import Size


def resize_absolute_position_embedding(embedding_1TC: Tensor, source: Size, target: Size) -> Tensor:
    """Resize an embedding of source (height, width) tokens to `target`, bicubic: (1, T', C)."""
    if all(isinstance(side, int) for side in target) and source == target:  # comparing symbols adds a guard
        return embedding_1TC
    embedding_1CHW = embedding_1TC.transpose(1, 2).unflatten(2, source)
    resized = F.interpolate(embedding_1CHW, size=target, mode='bicubic', align_corners=False)
    return resized.flatten(2).transpose(1, 2)


def resize_relative_position_bias_table(table_Rh: Tensor, source_window: Size, target_window: Size) -> Tensor:
    """Resize a bias table to another window, bicubic, each head by itself: (R', h), R' = (2Wh-1)*(2Ww-1)."""
    source, target = ((2 * height - 1, 2 * width - 1) for height, width in (source_window, target_window))
    table_1hYX = table_Rh.t().unflatten(1, source)[None]
    resized = F.interpolate(table_1hYX, size=target, mode='bicubic', align_corners=False)
    return resized[0].flatten(1).t().contiguous()


@cached_table
def log_spaced_coordinates(
    window_size: Size, pretrained_window: Size, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return the offset of each row of a bias table on a log scale (Liu et al. 2022, equation 4): (R, 2).

    As in microsoft/Swin-Transformer, offsets are scaled so that the largest of `pretrained_window` is 8, and mapped by
    log2(1 + x) / 3: the largest becomes 1.057. A larger window has larger offsets.
    """
    # float64 on the CPU, because MPS has no float64. A compiled graph computes on its own device, except on MPS.
    compute_device = device if torch.compiler.is_compiling() and device.type != 'mps' else torch.device('cpu')
    axes = []
    for length, pretrained in zip(window_size, pretrained_window):
        offsets = torch.arange(1 - length, length, device=compute_device, dtype=torch.float64) * (
            8 / max(1, pretrained - 1)
        )
        axes.append(offsets.sign() * torch.log2(offsets.abs() + 1) / math.log2(8))
    return torch.cartesian_prod(*axes).to(dtype).to(device)
