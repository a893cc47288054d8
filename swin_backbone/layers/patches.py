"""Patches in, patches merged: what sets the resolution of a stage.

Layout: B batch, C channels, H W height and width.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn


class PatchEmbed(BaseModule):
    """Cut an image into patches and project each to a token.

    The image is zero-padded at right and bottom to whole patches.

    Args:
        in_channels: channels of the image.
        embed_dims: channels of a token.
        patch_size: (height, width) of a patch in pixels, also the stride.
        norm_cfg: the norm of the tokens; None for none.
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: tuple[int, int], norm_cfg: Optional[dict]):
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(in_channels, embed_dims, kernel_size=patch_size, stride=patch_size)
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1] if norm_cfg else nn.Identity()

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """(B, in_channels, H, W) pixels to (B, ceil(H / patch), ceil(W / patch), embed_dims) tokens."""
        H, W = image_BCHW.shape[-2:]
        image_BCHW = F.pad(image_BCHW, (0, -W % self.patch_size[1], 0, -H % self.patch_size[0]))
        x_BHWC = self.projection(image_BCHW).permute(0, 2, 3, 1)
        return self.norm(x_BHWC)


class PatchMerging(BaseModule):
    """Concatenate 2 x 2 neighbours and project: half the resolution, `out_channels` wide.

    The concatenated channels are in the order of `nn.Unfold`, channel-major, as in mmdet and mmseg; a map that
    the stride does not divide is zero-padded at right and bottom.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm_cfg: Optional[dict]):
        super().__init__()
        self.stride = stride
        self.norm = build_norm_layer(norm_cfg, 4 * in_channels)[1] if norm_cfg else nn.Identity()
        self.reduction = nn.Linear(4 * in_channels, out_channels, bias=False)

    def forward(self, x_BHWC: Tensor) -> Tensor:
        """(B, H, W, C) to (B, ceil(H / stride), ceil(W / stride), out_channels)."""
        stride, (H, W) = self.stride, x_BHWC.shape[1:3]
        out_height, out_width = -(-H // stride), -(-W // stride)
        reach_height, reach_width = (out_height - 1) * stride + 1, (out_width - 1) * stride + 1
        x_BHWC = F.pad(x_BHWC, (0, 0, 0, max(0, reach_width + 1 - W), 0, max(0, reach_height + 1 - H)))
        neighbours = [
            x_BHWC[:, dy : dy + reach_height : stride, dx : dx + reach_width : stride] for dy in (0, 1) for dx in (0, 1)
        ]
        return self.reduction(self.norm(torch.stack(neighbours, dim=-1).flatten(3)))
