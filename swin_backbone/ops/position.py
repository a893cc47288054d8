"""Resizing position embeddings and position bias tables."""

import torch.nn.functional as F
from torch import Tensor

from .windows import Size


def resize_absolute_position_embedding(embedding_1TC: Tensor, source: Size, target: Size) -> Tensor:
    """Resize an embedding of source (height, width) tokens to `target`, bicubic: (1, T', C)."""
    if source == target:
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
