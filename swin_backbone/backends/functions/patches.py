"""Patch embedding, patch merging and the output norm. Each can compute a few rows of a map at a time, so that no
intermediate tensor is as large as a whole map.

Layout: B batch, C channels, H W height and width of a map, T tokens, P values of a patch (channels of the image, rows,
columns).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional, TypeVar, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from ...windows.grid import Size
from ..protocol import EmbeddingWeights, MergingWeights, recorder_of
from .block import contiguous_copy
from .block import linear as plain_linear

Weight = TypeVar('Weight', Tensor, Optional[Tensor])

OUTPUT_STRIP_TOKENS = 4096  # of an output map that are normalised and transposed while they are in cache


class Rows(NamedTuple):
    """Some input rows of one map of a batch, and the output rows that are computed from them."""

    image: slice
    rows: slice
    out_rows: slice
    out_height: int

    def read(self, x_BHWC: Tensor) -> Tensor:
        """(1, h, W, C)."""
        return x_BHWC[self.image, self.rows]

    def write(self, y_1HWC: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """See `Piece`."""
        shape = (x_BHWC.shape[0], self.out_height, *y_1HWC.shape[2:])
        return self._put(y_1HWC, self.out_rows, shape, out_BHWC)

    def read_gradient(self, grad_BHWC: Tensor) -> Tensor:
        """(1, h', W', C')."""
        return grad_BHWC[self.image, self.out_rows]

    def write_gradient(self, grad_1HWC: Tensor, x_BHWC: Tensor, grad_x_BHWC: Optional[Tensor]) -> Tensor:
        """See `Piece`."""
        return self._put(grad_1HWC, self.rows, x_BHWC.shape, grad_x_BHWC)

    def _put(self, part_1HWC: Tensor, rows: slice, shape: Sequence[int], whole_BHWC: Optional[Tensor]) -> Tensor:
        if whole_BHWC is None and part_1HWC.shape == shape:
            return part_1HWC  # these are all rows
        if whole_BHWC is None:
            whole_BHWC = part_1HWC.new_empty(shape)
        whole_BHWC[self.image, rows] = part_1HWC
        return whole_BHWC


def row_strips(shape: torch.Size, patch: Size, tokens: int) -> list[Rows]:
    """Cut maps (B, H, W, C) into strips of at least one row, each with at most `tokens` output tokens.

    Args:
        patch: (rows, columns) of a map that become one token; those at the bottom and right edge may be cut.
    """
    (batch, height, width), (patch_rows, patch_columns) = shape[:3], patch
    out_height, out_width = -(-height // patch_rows), -(-width // patch_columns)
    strips = -(-out_height // max(1, tokens // out_width))
    cuts = [out_height * i // strips for i in range(strips + 1)]  # alike in size
    return [
        Rows(slice(image, image + 1), slice(start * patch_rows, stop * patch_rows), slice(start, stop), out_height)
        for image in range(batch)
        for start, stop in zip(cuts, cuts[1:])
    ]


def embed(
    image_BHWC: Tensor, w: EmbeddingWeights, eps: Optional[float], linear: Callable[..., Tensor] = plain_linear
) -> Tensor:
    """Project each patch to a token and normalise it: (B, ceil(H / patch), ceil(W / patch), C).

    The convolution of disjoint patches is one matrix product.

    Args:
        image_BHWC: any view of images; patches at the bottom and right edge are zero-padded.
        eps: of the norm; None: there is no norm.
        linear: computes the linear layer.
    """
    C, channels, *patch = w.projection_weight.shape
    patches = contiguous_copy(cut_patches(image_BHWC, (patch[0], patch[1])).movedim(-1, 3))
    B, rows, columns = patches.shape[:3]
    patches_TP = patches.view(B * rows * columns, channels * patch[0] * patch[1])
    y_TC = linear(patches_TP, w.projection_weight.flatten(1), w.projection_bias)
    return _normalise(y_TC, w, eps).view(B, rows, columns, C)


def convolve(image_BCHW: Tensor, w: EmbeddingWeights, eps: Optional[float]) -> Tensor:
    """`embed` by torch's convolution."""
    patch = w.projection_weight.shape[2:]
    image_BCHW = pad_to_patches(image_BCHW, (patch[0], patch[1]))
    y_BHWC = F.conv2d(image_BCHW, w.projection_weight, w.projection_bias, stride=patch).permute(0, 2, 3, 1)
    return _normalise(y_BHWC, w, eps)


def pad_to_patches(image_BCHW: Tensor, patch: Size) -> Tensor:
    """Images zero-padded to whole patches, in the memory format in which a convolution takes the least time."""
    missing = -image_BCHW.shape[-2] % patch[0], -image_BCHW.shape[-1] % patch[1]
    # A graph takes all sizes: it pads, though nothing be missing.
    one_graph = recorder_of(image_BCHW) is not None
    if one_graph or any(missing):  # padding by nothing is a copy
        image_BCHW = F.pad(image_BCHW, (0, missing[1], 0, missing[0]))
    if not one_graph:
        # In channels_last memory the convolution writes tokens in the order in which they are read later, so that
        # nothing is transposed.
        image_BCHW = image_BCHW.contiguous(memory_format=torch.channels_last)
    return image_BCHW


def merge(
    x_BHWC: Tensor,
    w: MergingWeights,
    eps: Optional[float],
    post_norm: bool = False,
    linear: Callable[..., Tensor] = plain_linear,
) -> Tensor:
    """Concatenate 2 x 2 neighbours, normalise, project: (B, ceil(H / 2), ceil(W / 2), C'). An odd side is zero-padded.

    Args:
        eps: of the norm; None: there is no norm.
        post_norm: project, then normalise (Swin V2).
        linear: computes the linear layer.
    """
    patches = contiguous_copy(cut_patches(x_BHWC, (2, 2)))
    B, rows, columns, _, _, C = patches.shape
    y_TC = patches.view(B * rows * columns, 4 * C)
    y_TC = linear(y_TC if post_norm else _normalise(y_TC, w, eps), w.reduction_weight, None)
    return (_normalise(y_TC, w, eps) if post_norm else y_TC).view(B, rows, columns, y_TC.shape[-1])


def neighbours_first(weight: Weight) -> Weight:
    """Reorder the last dimension from (C, 2, 2), the order of `nn.Unfold`, to (2, 2, C), which moves whole tokens."""
    if weight is None:
        return None
    channels = weight.dim() - 1
    moved: Tensor = weight.unflatten(channels, (-1, 2, 2)).movedim(channels, channels + 2)
    return moved.flatten(channels)


def neighbours_last(weight: Tensor) -> Tensor:
    """Undo `neighbours_first`."""
    channels = weight.dim() - 1
    moved: Tensor = weight.unflatten(channels, (2, 2, weight.shape[-1] // 4)).movedim(channels + 2, channels)
    return moved.flatten(channels)


def neighbours_in_order(w: MergingWeights, post_norm: bool) -> MergingWeights:
    """Weights of patch merging for neighbours one behind the other, of which each is a whole token."""
    norm = (w.norm_weight, w.norm_bias) if post_norm else map(neighbours_first, (w.norm_weight, w.norm_bias))
    return MergingWeights(neighbours_first(w.reduction_weight), *norm)


def output_norm(x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """Layer norm, then the map that necks and heads read: (B, C, H, W), contiguous."""
    return contiguous_copy(F.layer_norm(x_BHWC, (int(x_BHWC.shape[-1]),), weight, bias, eps).permute(0, 3, 1, 2))


def output_norm_in_strips(x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    """`output_norm` while a strip of tokens is in cache. It has no gradient."""
    B, H, W, C = x_BHWC.shape
    out_BCT: Optional[Tensor] = None
    for image, x_TC in enumerate(x_BHWC.reshape(B, H * W, C)):
        start = 0
        for part_TC in x_TC.split(OUTPUT_STRIP_TOKENS):
            y_TC = F.layer_norm(part_TC, (C,), weight, bias, eps)
            if out_BCT is None:
                out_BCT = y_TC.new_empty(B, C, H * W)
            out_BCT[image, :, start : start + len(y_TC)] = y_TC.t()
            start += len(y_TC)
    assert out_BCT is not None  # a map has a token at least
    return out_BCT.view(B, C, H, W)


def cut_patches(x_BHWC: Tensor, patch: Size) -> Tensor:
    """A view of (B, H, W, C), padded with zeros to whole patches: (B, H / rows, W / columns, rows, columns, C)."""
    H, W = x_BHWC.shape[1:3]
    rows, columns = (H + patch[0] - 1) // patch[0], (W + patch[1] - 1) // patch[1]
    # To a compiler, which sees symbols, asking would be a guard on the size; elsewhere padding by nothing is a copy.
    # No size is left to be found (-1): for symbols that is a division, and takes minutes.
    if torch.compiler.is_compiling():
        x_BHWC = pad_symbols(x_BHWC, rows * patch[0], columns * patch[1])
    elif H % patch[0] or W % patch[1]:
        x_BHWC = F.pad(x_BHWC, (0, 0, 0, columns * patch[1] - W, 0, rows * patch[0] - H))
    patches: Tensor = x_BHWC.unflatten(2, (columns, patch[1])).unflatten(1, (rows, patch[0]))
    return patches.transpose(2, 3)


def pad_symbols(x_BHWC: Tensor, height: int, width: int) -> Tensor:
    """A map padded with zeros at right and bottom to sizes that may be symbols, in a graph.

    One side after the other: what pads a tensor of four dimensions asks for its memory format, which is a guard.
    """
    B, H, W, C = x_BHWC.shape
    x = F.pad(contiguous_copy(x_BHWC).view(B * H, W, C), (0, 0, 0, width - W))
    x = F.pad(x.view(B, H, width * C), (0, 0, 0, height - H))
    return x.view(B, height, width, C)


def _normalise(y_TC: Tensor, w: Union[EmbeddingWeights, MergingWeights], eps: Optional[float]) -> Tensor:
    if eps is None:
        return y_TC
    return F.layer_norm(y_TC, (int(y_TC.shape[-1]),), w.norm_weight, w.norm_bias, eps)
