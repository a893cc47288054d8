"""Patch merging and the output norm: what happens to a map between stages, as functions of the weights.

Layout: B batch, H W height and width of a map, C channels, T merged tokens.
"""

from functools import partial
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import linear, linear_backward
from .norm import layer_norm_vjp
from .rows import Rows, cut_patches, join_patches, over_rows, over_rows_backward
from .sums import GradientSums
from .traced import in_order

OUTPUT_STRIP_TOKENS = 4096  # of an output map that are normalised and transposed while they are in cache


class MergingWeights(NamedTuple):
    """The tensors patch merging computes with, over channels in the order of `nn.Unfold`: (C, 2, 2).

    A norm behind the reduction, as Swin V2 has, is over channels in no such order.
    """

    norm_weight: Optional[Tensor]  # with norm_bias: None if there is no norm
    norm_bias: Optional[Tensor]
    reduction_weight: Tensor


def merge_patches(
    x_BHWC: Tensor,
    _strip: None,
    w: MergingWeights,
    rows: Optional[list[Rows]],
    eps: Optional[float],
    post_norm: bool = False,
) -> Tensor:
    """Concatenate 2 x 2 neighbours, normalise, project: (B, ceil(H / 2), ceil(W / 2), C').

    Neighbours are put one behind the other, which moves whole tokens, and the weights are reordered to match:
    they are smaller than the map.

    Args:
        rows: strips of rows of the map, computed one after the other; None: the whole map.
        eps: of the norm; None: there is no norm.
        post_norm: project, then normalise (Swin V2).
    """
    merge = partial(_merge, w=_in_our_order(w, post_norm), eps=eps, post_norm=post_norm)
    return merge(x_BHWC) if rows is None else over_rows(merge, x_BHWC, rows)


def merge_patches_backward(
    grad_BHWC: Tensor,
    x_BHWC: Tensor,
    _strip: None,
    w: MergingWeights,
    sums: GradientSums,
    rows: list[Rows],
    eps: Optional[float],
    post_norm: bool = False,
) -> Tensor:
    """The gradient of `merge_patches`' input, from that of its output, computing again what lies between."""
    reordered = GradientSums(sums.wanted)
    merge_backward = partial(
        _merge_backward, w=_in_our_order(w, post_norm), sums=reordered, eps=eps, post_norm=post_norm
    )
    grad_x_BHWC = over_rows_backward(merge_backward, grad_BHWC, x_BHWC, rows)
    for name in w._fields:
        over_merged = name == 'reduction_weight' or not post_norm
        sums.add(name, _channels_first(reordered[name]) if over_merged else reordered[name])
    return grad_x_BHWC


def _merge(x_BHWC: Tensor, w: MergingWeights, eps: Optional[float], post_norm: bool) -> Tensor:
    B, H, W, C = x_BHWC.shape
    y_TC = _gather_neighbours(x_BHWC)
    if eps is not None and not post_norm:
        y_TC = F.layer_norm(y_TC, (4 * C,), w.norm_weight, w.norm_bias, eps)
    y_TC = linear(y_TC, w.reduction_weight, None)
    if eps is not None and post_norm:
        y_TC = F.layer_norm(y_TC, y_TC.shape[1:], w.norm_weight, w.norm_bias, eps)
    return y_TC.view(B, (H + 1) // 2, (W + 1) // 2, y_TC.shape[-1])


def _merge_backward(
    grad_BHWC: Tensor, x_BHWC: Tensor, w: MergingWeights, sums: GradientSums, eps: Optional[float], post_norm: bool
) -> Tensor:
    y_TC, grad_TC, norm_vjp = _gather_neighbours(x_BHWC), grad_BHWC.flatten(0, 2), None
    if eps is not None and post_norm:
        projected_TC = linear(y_TC, w.reduction_weight, None)
        grad_TC = layer_norm_vjp(projected_TC, w.norm_weight, w.norm_bias, eps, sums, 'norm')[1](grad_TC)
    elif eps is not None:
        y_TC, norm_vjp = layer_norm_vjp(y_TC, w.norm_weight, w.norm_bias, eps, sums, 'norm')
    grad_TC = linear_backward(grad_TC, y_TC, w.reduction_weight, sums, 'reduction')
    if norm_vjp is not None:
        grad_TC = norm_vjp(grad_TC)
    return _scatter_neighbours(grad_TC, x_BHWC.shape)


def normalise_output(x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """Layer norm, and the map that necks and heads read: (B, C, H, W), contiguous. Without a gradient."""
    B, H, W, C = x_BHWC.shape
    out_BCT = None
    for image, x_TC in enumerate(x_BHWC.reshape(B, H * W, C)):
        start = 0
        for part_TC in x_TC.split(OUTPUT_STRIP_TOKENS):
            y_TC = F.layer_norm(part_TC, (C,), weight, bias, eps)
            if out_BCT is None:
                out_BCT = y_TC.new_empty(B, C, H * W)
            out_BCT[image, :, start : start + len(y_TC)] = y_TC.t()
            start += len(y_TC)
    return out_BCT.view(B, C, H, W)


def _gather_neighbours(x_BHWC: Tensor) -> Tensor:
    """(B, H, W, C) to (B * H/2 * W/2, 2 * 2 * C); an odd side is zero-padded."""
    x = in_order(cut_patches(x_BHWC, (2, 2)))
    B, rows, columns, _, _, C = x.shape
    return x.view(B * rows * columns, 4 * C)


def _scatter_neighbours(x_TC: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `_gather_neighbours`, to a map of `shape`."""
    B, H, W, C = shape
    return join_patches(x_TC.view(B, (H + 1) // 2, (W + 1) // 2, 2, 2, C), H, W)


def _in_our_order(w: MergingWeights, post_norm: bool) -> MergingWeights:
    """The weights, those over merged channels reordered to match neighbours one behind the other."""
    if post_norm:
        return w._replace(reduction_weight=_neighbours_first(w.reduction_weight))
    return MergingWeights(*(_neighbours_first(weight) for weight in w))


def _neighbours_first(weight: Optional[Tensor]) -> Optional[Tensor]:
    """Reorder the last dimension from (C, 2, 2) to (2, 2, C)."""
    return None if weight is None else weight.unflatten(-1, (-1, 2, 2)).movedim(-3, -1).flatten(-3)


def _channels_first(weight: Optional[Tensor]) -> Optional[Tensor]:
    """Reorder the last dimension from (2, 2, C) to (C, 2, 2)."""
    return None if weight is None else weight.unflatten(-1, (2, 2, -1)).movedim(-1, -3).flatten(-3)
