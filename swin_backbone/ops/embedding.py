"""Patch embedding, as a function of its weights: the convolution of disjoint patches is one matrix product.

Layout: B batch, H W height and width, C channels, T tokens, P values of a patch (channels of the image, rows, columns).
"""

from functools import partial
from typing import NamedTuple, Optional

import torch.nn.functional as F
from torch import Tensor

from .linear import add_linear_gradients, linear, linear_backward
from .norm import layer_norm_vjp
from .rows import Rows, cut_patches, join_patches, over_rows, over_rows_backward
from .sums import GradientSums
from .traced import in_order


class EmbeddingWeights(NamedTuple):
    """The tensors patch embedding computes with."""

    projection_weight: Tensor  # of the convolution: (C, channels of the image, rows, columns)
    projection_bias: Optional[Tensor]
    norm_weight: Optional[Tensor]  # with norm_bias: None if there is no norm
    norm_bias: Optional[Tensor]


def embed_patches(
    image_BHWC: Tensor, _strip: None, w: EmbeddingWeights, rows: Optional[list[Rows]], eps: Optional[float]
) -> Tensor:
    """Project each patch to a token and normalise it: (B, ceil(H / patch), ceil(W / patch), C).

    Args:
        image_BHWC: any view of images; patches at the bottom and right edge are zero-padded.
        rows: strips of rows of the image, computed one after the other; None: the whole image.
        eps: of the norm; None: there is no norm.
    """
    embed = partial(_embed, w=w, eps=eps)
    return embed(image_BHWC) if rows is None else over_rows(embed, image_BHWC, rows)


def embed_patches_backward(
    grad_BHWC: Tensor,
    image_BHWC: Tensor,
    _strip: None,
    w: EmbeddingWeights,
    sums: GradientSums,
    rows: list[Rows],
    eps: Optional[float],
) -> Optional[Tensor]:
    """The gradient of the image, if `sums` wants 'x', from that of the tokens, computing again what lies between."""
    flat = GradientSums(sums.wanted)
    image_grad_BHWC = over_rows_backward(partial(_embed_backward, w=w, sums=flat, eps=eps), grad_BHWC, image_BHWC, rows)
    for name, weight in zip(w._fields, w):
        if flat[name] is not None:
            sums.add(name, flat[name].view(weight.shape))
    return image_grad_BHWC


def _embed(image_BHWC: Tensor, w: EmbeddingWeights, eps: Optional[float]) -> Tensor:
    patches_BHWP = _cut_patches(image_BHWC, w.projection_weight)
    y_TC = linear(patches_BHWP.flatten(0, 2), w.projection_weight.flatten(1), w.projection_bias)
    if eps is not None:
        y_TC = F.layer_norm(y_TC, y_TC.shape[1:], w.norm_weight, w.norm_bias, eps)
    return y_TC.view(*patches_BHWP.shape[:3], len(w.projection_weight))


def _embed_backward(
    grad_BHWC: Tensor, image_BHWC: Tensor, w: EmbeddingWeights, sums: GradientSums, eps: Optional[float]
) -> Optional[Tensor]:
    patches_BHWP, grad_TC = _cut_patches(image_BHWC, w.projection_weight), grad_BHWC.flatten(0, 2)
    patches_TP, weight_CP = patches_BHWP.flatten(0, 2), w.projection_weight.flatten(1)
    if eps is not None:
        y_TC = linear(patches_TP, weight_CP, w.projection_bias)
        grad_TC = layer_norm_vjp(y_TC, w.norm_weight, w.norm_bias, eps, sums, 'norm')[1](grad_TC)
    if 'x' not in sums.wanted:
        return add_linear_gradients(grad_TC, patches_TP, weight_CP, sums, 'projection')
    grad_TP = linear_backward(grad_TC, patches_TP, weight_CP, sums, 'projection')
    grad = grad_TP.view(*patches_BHWP.shape[:3], *w.projection_weight.shape[1:]).movedim(3, -1)
    return join_patches(grad, *image_BHWC.shape[1:3])


def _cut_patches(image_BHWC: Tensor, weight: Tensor) -> Tensor:
    """(B, H, W, channels) to (B, H / patch, W / patch, P)."""
    patches = in_order(cut_patches(image_BHWC, weight.shape[2:]).movedim(-1, 3))
    return patches.view(*patches.shape[:3], weight[0].numel())
