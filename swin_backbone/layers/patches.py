"""Patches in, patches merged: what sets the resolution of a stage.

Layout: B batch, C channels, H W height and width.
"""

from collections.abc import Callable
from functools import partial
from typing import Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..ops.autocast import cast_to_autocast
from ..ops.blocked import Computation, StripTokens, recomputed, saves_memory, tokens_per_strip
from ..ops.embedding import EmbeddingWeights, embed_patches, embed_patches_backward
from ..ops.merging import MergingWeights, merge_patches, merge_patches_backward, normalise_output
from ..ops.rows import row_strips
from ..ops.traced import in_order
from ..ops.windows import Size
from .published import has_hooks, is_as_published


class PatchEmbed(BaseModule):
    """Cut an image into patches and project each to a token.

    The image is zero-padded at right and bottom to whole patches.

    Args:
        in_channels: channels of the image.
        embed_dims: channels of a token.
        patch_size: (height, width) of a patch in pixels, also the stride.
        norm_cfg: the norm of the tokens; None for none.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: tuple[int, int],
        norm_cfg: Optional[dict],
        strip_tokens: StripTokens,
    ):
        super().__init__()
        self.patch_size = patch_size
        self.strip_tokens = strip_tokens
        self.projection = nn.Conv2d(in_channels, embed_dims, kernel_size=patch_size, stride=patch_size)
        self.norm = build_norm_layer(norm_cfg, embed_dims)[1] if norm_cfg else nn.Identity()

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """(B, in_channels, H, W) pixels to (B, ceil(H / patch), ceil(W / patch), embed_dims) tokens."""
        in_strips = saves_memory(self.strip_tokens, image_BCHW)
        if (in_strips or torch.compiler.is_compiling()) and self._is_as_published():
            return self._by_product(image_BCHW.permute(0, 2, 3, 1), in_strips)
        H, W = image_BCHW.shape[-2:]
        image_BCHW = F.pad(image_BCHW, (0, -W % self.patch_size[1], 0, -H % self.patch_size[0]))
        # In channels_last memory the convolution writes tokens as they are read, and nothing is transposed.
        x_BHWC = self.projection(image_BCHW.contiguous(memory_format=torch.channels_last)).permute(0, 2, 3, 1)
        return self.norm(x_BHWC)

    def _by_product(self, image_BHWC: Tensor, in_strips: bool) -> Tensor:
        """By one matrix product: a convolution asks for memory formats, and for symbolic sizes that is a guard."""
        weights = EmbeddingWeights(
            cast_to_autocast(self.projection.weight),
            cast_to_autocast(self.projection.bias),
            getattr(self.norm, 'weight', None),
            getattr(self.norm, 'bias', None),
        )
        tokens = tokens_per_strip(self.strip_tokens, self.projection.out_channels) if in_strips else None
        eps = getattr(self.norm, 'eps', None)
        return _by_rows(embed_patches, embed_patches_backward, image_BHWC, weights, self.patch_size, tokens, eps=eps)

    def _is_as_published(self) -> bool:
        """Whether the projection is still the convolution of disjoint patches that it was made as."""
        conv = self.projection
        return (
            is_as_published(self, nn.Conv2d)
            and isinstance(conv, nn.Conv2d)
            and (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)
            == (self.patch_size, self.patch_size, (0, 0), (1, 1), 1)
        )


class PatchMerging(BaseModule):
    """Concatenate 2 x 2 neighbours and project: half the resolution, `out_channels` wide.

    The concatenated channels are in the order of `nn.Unfold`, channel-major, as in mmdet and mmseg; a map that
    the stride does not divide is zero-padded at right and bottom.

    Args:
        stride: of the neighbourhoods, which stay 2 x 2.
        norm_cfg: the norm of what is concatenated, or of what is projected; None for none.
        post_norm: which of the two; Swin V2's is behind the projection.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        norm_cfg: Optional[dict],
        strip_tokens: StripTokens,
        post_norm: bool = False,
    ):
        super().__init__()
        self.stride = stride
        self.strip_tokens = strip_tokens
        self.post_norm = post_norm
        num_normed = out_channels if post_norm else 4 * in_channels
        self.norm = build_norm_layer(norm_cfg, num_normed)[1] if norm_cfg else nn.Identity()
        self.reduction = nn.Linear(4 * in_channels, out_channels, bias=False)

    def forward(self, x_BHWC: Tensor) -> Tensor:
        """(B, H, W, C) to (B, ceil(H / stride), ceil(W / stride), out_channels)."""
        if self.stride != 2 or not is_as_published(self):
            return self._by_modules(x_BHWC)
        weights = MergingWeights(
            getattr(self.norm, 'weight', None),
            getattr(self.norm, 'bias', None),
            cast_to_autocast(self.reduction.weight),
        )
        norm = dict(eps=getattr(self.norm, 'eps', None), post_norm=self.post_norm)
        by_rows = partial(_by_rows, merge_patches, merge_patches_backward, weights=weights, patch=(2, 2), **norm)
        if not saves_memory(self.strip_tokens, x_BHWC):
            return by_rows(x_BHWC, tokens=None)
        B, H, W, C = x_BHWC.shape
        if H % 2 == 0:  # then images are rows of one
            x_BHWC = x_BHWC.reshape(1, B * H, W, C)
        y_BHWC = by_rows(x_BHWC, tokens=tokens_per_strip(self.strip_tokens, C))
        return y_BHWC.view(B, -(-H // 2), -(-W // 2), -1)

    def _by_modules(self, x_BHWC: Tensor) -> Tensor:
        stride, (H, W) = self.stride, x_BHWC.shape[1:3]
        out_height, out_width = -(-H // stride), -(-W // stride)
        reach_height, reach_width = (out_height - 1) * stride + 1, (out_width - 1) * stride + 1
        x_BHWC = F.pad(x_BHWC, (0, 0, 0, max(0, reach_width + 1 - W), 0, max(0, reach_height + 1 - H)))
        neighbours = [
            x_BHWC[:, dy : dy + reach_height : stride, dx : dx + reach_width : stride] for dy in (0, 1) for dx in (0, 1)
        ]
        x_BHWC = torch.stack(neighbours, dim=-1).flatten(3)
        return self.norm(self.reduction(x_BHWC)) if self.post_norm else self.reduction(self.norm(x_BHWC))


def _by_rows(
    forward: Callable[..., Tensor],
    backward: Callable[..., Optional[Tensor]],
    x_BHWC: Tensor,
    weights: tuple,
    patch: Size,
    tokens: Optional[int],
    **norm,
) -> Tensor:
    """What patches become, in strips of so many tokens that keep `x_BHWC` alone for backward; None: as one graph."""
    if tokens is None:
        return forward(x_BHWC, None, weights, rows=None, **norm)
    how = dict(rows=row_strips(*x_BHWC.shape[:3], patch, tokens), **norm)
    return recomputed(Computation(partial(forward, **how), partial(backward, **how)), x_BHWC, weights)


def normalised_output(norm: nn.Module, x_BHWC: Tensor) -> Tensor:
    """The norm of a stage's output, as necks and heads read it: (B, C, H, W).

    In contiguous memory, not as a channels_last view: mmcv's RoIAlign reads any memory as if it were (B, C, H, W).
    """
    plain = type(norm) is nn.LayerNorm and is_as_published(norm) and not has_hooks(norm)
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (x_BHWC, *norm.parameters()))
    if plain and not needs_grad and saves_memory('auto', x_BHWC):
        return normalise_output(x_BHWC, norm.weight, norm.bias, norm.eps)
    return in_order(norm(x_BHWC).permute(0, 3, 1, 2))
