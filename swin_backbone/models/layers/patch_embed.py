"""Patch embedding: an image becomes a map of tokens.

Layout: B batch, C channels, H W height and width.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from torch import Tensor, nn

from ...backends.linear import eager_linear
from ...backends.native.patches import embed
from ...backends.patches import EmbeddingWeights, embed_patches, row_strips
from ...backends.plan import Plan, is_one_graph, run
from .layer import CompiledLayer, norm_values
from .snapshot import is_as_built, known_layer, remember_layers


@known_layer
class PatchEmbed(CompiledLayer):
    """Cut an image into patches and project each to a token.

    The image is zero-padded to whole patches on the right and at the bottom.

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
        remember_layers(self)

    def forward(self, image_BCHW: Tensor, plan: Plan = Plan()) -> Tensor:  # noqa: B008 - it has constants alone
        """(B, in_channels, H, W) pixels to (B, ceil(H / patch), ceil(W / patch), embed_dims) tokens.

        On a CPU and under torch.compile this is one matrix product. A convolution would check the memory format, and
        with symbolic sizes such a check is a guard.
        """
        by_modules = plan.strip_tokens is None and plan.compiled is None and not torch.compiler.is_compiling()
        if by_modules or not self._is_as_built():
            return self._by_modules(image_BCHW)
        projection, (norm_weight, norm_bias, eps) = self.projection, norm_values(self.norm)
        if plan.compiled is not None and image_BCHW.dtype == projection.weight.dtype == torch.float32:
            norm = norm_weight, norm_bias, eps
            return embed(image_BCHW, plan.compiled, projection.weight, projection.bias, *norm, self.packed)
        image_BHWC, cast = image_BCHW.permute(0, 2, 3, 1), plan.cast
        weights = EmbeddingWeights(cast(projection.weight), cast(projection.bias), norm_weight, norm_bias)
        if plan.strip_tokens is None:
            return embed_patches(image_BHWC, weights, eps)
        rows = row_strips(image_BHWC.shape, self.patch_size, plan.strip_tokens)
        return run(
            lambda image, _rows, w, **_: embed_patches(image, w, eps, eager_linear), image_BHWC, rows, weights, plan
        )

    def _by_modules(self, image_BCHW: Tensor) -> Tensor:
        H, W = image_BCHW.shape[-2:]
        one_graph, missing = is_one_graph(image_BCHW), (-H % self.patch_size[0], -W % self.patch_size[1])
        if one_graph or any(missing):  # which copies, though nothing be missing; but a graph takes all sizes
            image_BCHW = F.pad(image_BCHW, (0, missing[1], 0, missing[0]))
        if not one_graph:
            # In channels_last memory the convolution writes tokens in the order in which they are read later, so that
            # nothing is transposed.
            image_BCHW = image_BCHW.contiguous(memory_format=torch.channels_last)
        return self.norm(self.projection(image_BCHW).permute(0, 2, 3, 1))

    def _is_as_built(self) -> bool:
        """Whether the projection is still the original convolution over patches that do not overlap."""
        conv = self.projection
        return is_as_built(self) and (
            (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)
            == (self.patch_size, self.patch_size, (0, 0), (1, 1), 1)
        )
