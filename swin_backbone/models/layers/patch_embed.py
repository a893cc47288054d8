"""Patch embedding: an image becomes a map of tokens.

Layout: B batch, C channels, H W height and width.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from torch import Tensor, nn

from ...backends.choose import linear_dtype, recorder_of
from ...backends.native import layers as native
from ...backends.native.operators import why_not_weights
from .layer import Layer, norm_values


class PatchEmbed(Layer):
    """Cut an image into patches and project each to a token.

    The image is zero-padded to whole patches on the right and at the bottom.

    Args:
        in_channels: channels of the image.
        embed_dims: channels of a token.
        patch_size: (height, width) of a patch in pixels, also the stride.
        norm_cfg: the norm of the tokens; None for none.
    """

    def __init__(
        self, in_channels: int, embed_dims: int, patch_size: tuple[int, int], norm_cfg: Optional[dict[str, Any]]
    ):
        super().__init__()
        self.patch_size = patch_size
        self.projection = nn.Conv2d(in_channels, embed_dims, kernel_size=patch_size, stride=patch_size)
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1] if norm_cfg else nn.Identity()
        self.record_modules()

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """(B, in_channels, H, W) pixels to (B, ceil(H / patch), ceil(W / patch), embed_dims) tokens."""
        if self.by_library(image_BCHW):
            conv, dtype = self.projection, linear_dtype(image_BCHW)
            return native.embed(image_BCHW, conv.weight, conv.bias, norm_values(self.norm), dtype, self.cache)
        x_BHWC: Tensor = self.norm(self.projection(self._pad(image_BCHW)).permute(0, 2, 3, 1))
        return x_BHWC

    def _pad(self, image_BCHW: Tensor) -> Tensor:
        """Return images padded to whole patches, in the memory format in which a convolution takes the least time."""
        missing = -image_BCHW.shape[-2] % self.patch_size[0], -image_BCHW.shape[-1] % self.patch_size[1]
        one_graph = recorder_of(image_BCHW) is not None
        if one_graph or any(missing):  # a graph takes all sizes and compares none
            image_BCHW = F.pad(image_BCHW, (0, missing[1], 0, missing[0]))
        # From channels_last memory the convolution writes tokens in the order in which norms read them.
        return image_BCHW if one_graph else image_BCHW.contiguous(memory_format=torch.channels_last)

    def why_not_native(self) -> Optional[str]:
        """See `Layer`."""
        conv, patch = self.projection, self.patch_size
        reason = super().why_not_native() or why_not_weights([conv.weight])
        if reason is None and (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups) != (
            *(patch, patch, (0, 0), (1, 1), 1),
        ):
            return f'The compiled library takes patches that do not overlap, not {conv}.'
        return reason
