"""Patch embedding, patch merging and output norms by the operators.

Layout: B batch, H W height and width of a map, C channels.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..patches import EmbeddingWeights, MergingWeights, embed_patches, merge_patches, neighbours_first, neighbours_last
from .gradients import Operator
from .packing import Packed


def embed(
    image_BCHW: Tensor,
    dtype: torch.dtype,
    weight: Tensor,
    bias: Optional[Tensor],
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    packed: Packed,
) -> Tensor:
    """Patch embedding to tokens (B, H', W', C), by the weight of a convolution (C, channels, rows, columns).

    Args:
        image_BCHW: float32, in any memory format.
        eps: of the norm after the projection; None: there is no norm.
    """
    patch = list(weight.shape[2:])

    def compute(image, weight, *others):
        (panels,) = packed.get((weight,), dtype, (1,))
        return (torch.ops.swin_backbone.embed(image, panels, *others, eps, patch),)

    def gradients(grad, needed, image, weight, *others):
        (panels,) = packed.get((weight,), dtype, (1,))
        of_image, of_weight, *of_others = torch.ops.swin_backbone.embed_backward(
            image, grad, panels, _transposed(weight, dtype) if needed[0] else None, *others, eps, patch
        )
        return of_image, of_weight.view_as(weight), *of_others

    def by_torch(image, *weights):
        return embed_patches(image.permute(0, 2, 3, 1), EmbeddingWeights(*weights), eps)

    return Operator.apply(compute, gradients, by_torch, image_BCHW, weight, bias, norm_weight, norm_bias)


def merge(
    x_BHWC: Tensor,
    dtype: torch.dtype,
    weight: Tensor,
    norm_weight: Optional[Tensor],
    norm_bias: Optional[Tensor],
    eps: Optional[float],
    post_norm: bool,
    packed: Packed,
) -> Tensor:
    """Patch merging of 2 x 2 neighbours to tokens (B, ceil(H/2), ceil(W/2), C').

    Args:
        weight: of the projection; its inputs are in the order of `nn.Unfold`: (C, 2, 2).
        eps: of the norm, which is before the projection or, with `post_norm`, after it; None: there is no norm.
    """

    def in_order(norm):
        return norm if post_norm else [neighbours_first(w) for w in norm]

    def compute(x, weight, *norm):
        (panels,) = packed.get((weight,), dtype, (1,), neighbours_first)
        return (torch.ops.swin_backbone.merge(x, panels, *in_order(norm), eps, post_norm),)

    def gradients(grad, needed, x, weight, *norm):
        (panels,) = packed.get((weight,), dtype, (1,), neighbours_first)
        transposed = _transposed(neighbours_first(weight), dtype) if needed[0] else None
        of_x, of_weight, _, *of_norm = torch.ops.swin_backbone.merge_backward(
            x, grad, panels, transposed, *in_order(norm), eps, post_norm
        )
        if not post_norm:
            of_norm = [neighbours_last(g) for g in of_norm]
        return of_x, neighbours_last(of_weight), *of_norm

    def by_torch(x, weight, *norm):
        norm_weight, norm_bias = in_order(norm)
        return merge_patches(x, MergingWeights(norm_weight, norm_bias, neighbours_first(weight)), eps, post_norm)

    return Operator.apply(compute, gradients, by_torch, x_BHWC.contiguous(), weight, norm_weight, norm_bias)


def output_norm(x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """Layer norm of a float32 map, transposed: (B, C, H, W)."""

    def compute(x, weight, bias):
        return (torch.ops.swin_backbone.output_norm(x, weight, bias, eps),)

    def gradients(grad, _, x, weight, bias):
        return torch.ops.swin_backbone.output_norm_backward(x, grad, weight, bias, eps)

    def by_torch(x, weight, bias):
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps).permute(0, 3, 1, 2)

    return Operator.apply(compute, gradients, by_torch, x_BHWC.contiguous(), weight, bias)


def _transposed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.ops.swin_backbone.pack_linear(weight, dtype, 1, transposed=True)
