"""Patch embedding: an image becomes a map of tokens.

Layout: B batch, C channels, H W height and width.
"""

from typing import Any, Optional

from mmcv.cnn import build_norm_layer
from torch import Tensor, nn

from ...backends.functions.patches import pad_to_patches
from ...backends.protocol import EmbeddingWeights, Plan
from .layer import BackendLayer, norm_values
from .snapshot import is_unmodified, known_layer, take_snapshot


@known_layer
class PatchEmbed(BackendLayer):
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
        take_snapshot(self)

    def forward(self, image_BCHW: Tensor, plan: Optional[Plan] = None) -> Tensor:
        """(B, in_channels, H, W) pixels to (B, ceil(H / patch), ceil(W / patch), embed_dims) tokens.

        Args:
            plan: how it is computed; None: each module is called.
        """
        if plan is None or not self._is_unmodified():
            image_BCHW = pad_to_patches(image_BCHW, self.patch_size)
            x_BHWC: Tensor = self.norm(self.projection(image_BCHW).permute(0, 2, 3, 1))
            return x_BHWC
        norm_weight, norm_bias, eps = norm_values(self.norm)
        weights = EmbeddingWeights(self.projection.weight, self.projection.bias, norm_weight, norm_bias)
        return plan.backend.embed(image_BCHW, weights, eps, plan, self.cache)

    def _is_unmodified(self) -> bool:
        """Whether the projection is still the original convolution over patches that do not overlap."""
        conv = self.projection
        return is_unmodified(self) and (
            (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)
            == (self.patch_size, self.patch_size, (0, 0), (1, 1), 1)
        )
