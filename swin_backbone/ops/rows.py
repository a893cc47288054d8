"""Patch embedding and merging turn some rows of a map into one row of another; here they do so strip by strip, so that
what lies between stays in cache and is nowhere in memory as a whole.

Layout: B batch, H W height and width of a map, C channels.
"""

from collections.abc import Callable
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .traced import in_order, pad_map
from .windows import Size


class Rows(NamedTuple):
    """Some rows of one map of a batch, and the rows they become."""

    image: slice
    read: slice
    written: slice


def row_strips(batch: int, height: int, width: int, patch: Size, tokens: int) -> list[Rows]:
    """All rows of B maps of H x W, in strips that become at most `tokens` tokens of a row or more.

    Args:
        patch: (rows, columns) of a map that become one token; those at the bottom and right edge may be cut.
    """
    out_height, out_width = -(-height // patch[0]), -(-width // patch[1])
    strips = -(-out_height // max(1, tokens // out_width))
    cuts = [out_height * i // strips for i in range(strips + 1)]  # alike in size
    return [
        Rows(slice(image, image + 1), slice(start * patch[0], stop * patch[0]), slice(start, stop))
        for image in range(batch)
        for start, stop in zip(cuts, cuts[1:])
    ]


def over_rows(compute: Callable[[Tensor], Tensor], x_BHWC: Tensor, strips: list[Rows]) -> Tensor:
    """`compute` of each strip (1, h, W, C), put together: (B, H', W', C')."""
    if len(strips) == 1:
        return compute(x_BHWC)
    out_BHWC = None
    for rows in strips:
        y_1HWC = compute(x_BHWC[rows.image, rows.read])
        if out_BHWC is None:
            out_BHWC = y_1HWC.new_empty(x_BHWC.shape[0], strips[-1].written.stop, *y_1HWC.shape[2:])
        out_BHWC[rows.image, rows.written] = y_1HWC
    return out_BHWC


def over_rows_backward(
    backward: Callable[[Tensor, Tensor], Optional[Tensor]], grad_BHWC: Tensor, x_BHWC: Tensor, strips: list[Rows]
) -> Optional[Tensor]:
    """The gradient of `x_BHWC`, from `backward` of each strip's gradient and input; None if that gives None."""
    if len(strips) == 1:
        return backward(grad_BHWC, x_BHWC)
    grad_x_BHWC = None
    for rows in strips:
        grad_1HWC = backward(grad_BHWC[rows.image, rows.written], x_BHWC[rows.image, rows.read])
        if grad_1HWC is None:
            continue
        if grad_x_BHWC is None:
            grad_x_BHWC = torch.empty_like(x_BHWC, dtype=grad_1HWC.dtype)
        grad_x_BHWC[rows.image, rows.read] = grad_1HWC
    return grad_x_BHWC


def cut_patches(x_BHWC: Tensor, patch: Size) -> Tensor:
    """A view of (B, H, W, C), padded with zeros to whole patches: (B, H / rows, W / columns, rows, columns, C)."""
    H, W = x_BHWC.shape[1:3]
    rows, columns = (H + patch[0] - 1) // patch[0], (W + patch[1] - 1) // patch[1]
    # To a compiler, which sees symbols, asking would be a guard on the size; elsewhere padding by nothing is a copy.
    # No size is left to be found (-1): for symbols that is a division, and takes minutes.
    if torch.compiler.is_compiling() or H % patch[0] or W % patch[1]:
        x_BHWC = pad_map(x_BHWC, rows * patch[0], columns * patch[1])
    return x_BHWC.unflatten(2, (columns, patch[1])).unflatten(1, (rows, patch[0])).transpose(2, 3)


def join_patches(patches: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `cut_patches`, without what was padded: (B, H, W, C)."""
    return in_order(patches.transpose(2, 3)).flatten(3, 4).flatten(1, 2)[:, :height, :width]
