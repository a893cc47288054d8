"""Swin-MLP's block written literally, as `backends/reference.py` has Swin's and Swin V2's; for tests.

Layout: B batch, H W height and width of a map, C channels, N places of a window, h heads, d channels of a head.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from .reference import Size, window_partition, window_reverse


def swin_mlp_block(
    x_BHWC: Tensor,
    weights: Mapping[str, Tensor],
    num_heads: int,
    window_size: Size,
    shift: Size,
    small_map: str = 'pad',
) -> Tensor:
    """One block of Swin-MLP (microsoft/Swin-Transformer): a linear layer over the places of each window, one a head.

    A shift pads the map with window - shift zeros at top and left, and at bottom and right to whole windows.

    Args:
        weights: the block's state dict.
    """
    _B, H, W, C = x_BHWC.shape
    if small_map == 'shrink' and (H <= window_size[0] or W <= window_size[1]):
        shift = (0, 0)
    top, left = (side - by if by else 0 for side, by in zip(window_size, shift))
    bottom, right = -(top + H) % window_size[0], -(left + W) % window_size[1]
    normed = F.layer_norm(x_BHWC, (C,), weights['norm1.weight'], weights['norm1.bias'])
    padded = F.pad(normed, (0, 0, left, right, top, bottom))
    mixed = []
    for x_NC in window_partition(padded, window_size):
        heads_hNd = x_NC.unflatten(1, (num_heads, -1)).transpose(0, 1)
        places_hNd = F.conv1d(
            heads_hNd.flatten(0, 1), weights['spatial_mlp.weight'], weights['spatial_mlp.bias'], groups=num_heads
        ).view(heads_hNd.shape)
        mixed.append(places_hNd.transpose(0, 1).flatten(1))
    mixed_BHWC = window_reverse(torch.stack(mixed), window_size, (padded.shape[1], padded.shape[2]))
    x_BHWC = x_BHWC + mixed_BHWC[:, top : top + H, left : left + W]
    normed = F.layer_norm(x_BHWC, (C,), weights['norm2.weight'], weights['norm2.bias'])
    hidden = F.gelu(F.linear(normed, weights['ffn.layers.0.0.weight'], weights['ffn.layers.0.0.bias']))
    return x_BHWC + F.linear(hidden, weights['ffn.layers.1.weight'], weights['ffn.layers.1.bias'])
