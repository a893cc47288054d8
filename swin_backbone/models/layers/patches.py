"""Patch embedding, and patch merging between stages.

Layout: B batch, C channels, H W height and width.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...modes import find_tracer
from ...replace import replaceable
from ..arguments import build_norm


class PatchEmbed(nn.Module):
    """Cut an image into patches and project a patch to a token.

    The image is zero-padded to whole patches on the right and at the bottom.

    Args:
        in_channels: channels of the image.
        embed_dims: channels of a token.
        patch_size: (height, width) of a patch in pixels, also the stride.
        norm_cfg: the norm of the tokens; None for none.
    """

    backend = 'auto'

    def __init__(
        self, in_channels: int, embed_dims: int, patch_size: tuple[int, int], norm_cfg: Optional[dict[str, Any]]
    ):
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(in_channels, embed_dims, kernel_size=patch_size, stride=patch_size)
        self.norm = build_norm(norm_cfg, embed_dims) if norm_cfg else nn.Identity()

    @replaceable
    def forward(self, image_BCHW: Tensor) -> Tensor:
        """Map (B, in_channels, H, W) pixels to (B, ceil(H / patch), ceil(W / patch), embed_dims) tokens."""
        # With `%` in place of `//`, torch.export cannot prove that a side of the map is above 0.
        missing = [(n + patch - 1) // patch * patch - n for n, patch in zip(image_BCHW.shape[-2:], self.patch_size)]
        tracer = find_tracer(image_BCHW)
        if tracer or any(missing):  # a graph must not compare sizes, and always pads
            image_BCHW = F.pad(image_BCHW, (0, missing[1], 0, missing[0]))
        # A convolution of channels_last memory writes the channels of a token side by side, as the norm reads them.
        if tracer == 'torch.compile':  # without a comparison of strides
            image_BCHW = image_BCHW.clone(memory_format=torch.channels_last)
        elif not tracer:
            image_BCHW = image_BCHW.contiguous(memory_format=torch.channels_last)
        return self.norm(self.projection(image_BCHW).permute(0, 2, 3, 1))


class PatchMerging(nn.Module):
    """Concatenate 2 x 2 neighbours and project to `out_channels`, at half the resolution.

    The concatenated channels are in the order of `nn.Unfold`, channel-major, as in mmdet and mmseg. If the stride
    does not divide a map's side, the map gets zeros on the right and at the bottom.

    Args:
        stride: distance between neighbourhoods; a neighbourhood is 2 x 2 for any stride.
        norm_cfg: the norm before or after the projection; None: no norm.
        post_norm: whether the norm is after the projection, as in Swin V2.
    """

    backend = 'auto'

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        norm_cfg: Optional[dict[str, Any]],
        post_norm: bool = False,
    ):
        super().__init__()
        self.stride = stride
        self.post_norm = post_norm
        normed_channels = out_channels if post_norm else 4 * in_channels
        self.norm = build_norm(norm_cfg, normed_channels) if norm_cfg else nn.Identity()
        self.reduction = nn.Linear(4 * in_channels, out_channels, bias=False)

    @replaceable
    def forward(self, x_BHWC: Tensor) -> Tensor:
        """Map (B, H, W, C) to (B, ceil(H / stride), ceil(W / stride), out_channels)."""
        if self.stride == 2:  # by a view: torch.export cannot prove the lengths of slices with steps
            B, H, W, C = x_BHWC.shape
            rows, columns = (H + 1) // 2, (W + 1) // 2
            x_BHWC = F.pad(x_BHWC, (0, 0, 0, 2 * columns - W, 0, 2 * rows - H))
            x_BHWC = x_BHWC.view(B, rows, 2, columns, 2, C).permute(0, 1, 3, 5, 2, 4).flatten(3)
        else:
            x_BHWC = self._concatenate_by_slices(x_BHWC)
        return self.norm(self.reduction(x_BHWC)) if self.post_norm else self.reduction(self.norm(x_BHWC))

    def _concatenate_by_slices(self, x_BHWC: Tensor) -> Tensor:
        """Return neighbourhoods at any stride, (B, ceil(H / stride), ceil(W / stride), 4C)."""
        stride, (_B, H, W, _C) = self.stride, x_BHWC.shape
        slice_height, slice_width = (H - 1) // stride * stride + 1, (W - 1) // stride * stride + 1
        x_BHWC = F.pad(x_BHWC, (0, 0, 0, max(0, slice_width + 1 - W), 0, max(0, slice_height + 1 - H)))
        neighbours = [
            x_BHWC[:, dy : dy + slice_height : stride, dx : dx + slice_width : stride] for dy in (0, 1) for dx in (0, 1)
        ]
        return torch.stack(neighbours, dim=-1).flatten(3)
