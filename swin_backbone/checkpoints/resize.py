"""A checkpoint's tensors at the sizes of another backbone: another window, image, or number of input channels."""

import math
from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

from ..windows.grid import Size
from ..windows.position import resize_absolute_position_embedding, resize_relative_position_bias_table
from .errors import CheckpointError


def num_offsets(window_size: Size) -> int:
    """The rows of a window's relative position bias table."""
    return (2 * window_size[0] - 1) * (2 * window_size[1] - 1)


def trained_window(table_Rh: Tensor, known: Optional[Size], target: Size) -> Size:
    """The window that a relative position bias table is for.

    Args:
        known: what the checkpoint says of it.
        target: the window it is wanted for, which it is taken for if that has as many rows; else for a square.

    Raises:
        CheckpointError: if the table is for a rectangle, and it is not known which.
    """
    rows = table_Rh.shape[0]
    window = known or (target if rows == num_offsets(target) else window_of_table(table_Rh))
    if window is None or rows != num_offsets(window):
        raise CheckpointError(
            f'a relative position bias table of {rows} rows is for no square window, and for which rectangle it '
            'does not say; load it at the window it was trained with'
        )
    return window


def resize_table(table_Rh: Tensor, source: Size, target: Size) -> tuple[Tensor, str]:
    """A relative position bias table of the window `source` for the window `target`, and what was done, '' for nothing.

    Bicubic, each head by itself, as microsoft/Swin-Transformer does.
    """
    if source == target:
        return table_Rh, ''
    resized = _in_float32(resize_relative_position_bias_table, table_Rh, source, target)
    return resized, f'bias tables from window {times(source)} to {times(target)}'


def resize_embedding(embedding_1TC: Tensor, source: Optional[Size], target: Size) -> tuple[Tensor, str]:
    """An absolute position embedding for `target` (height, width) patches, and what was done; as `resize_table`."""
    tokens = embedding_1TC.shape[1]
    if source is None:
        side = math.isqrt(tokens)
        source = target if tokens == math.prod(target) else (side, side)
    if math.prod(source) != tokens:
        raise CheckpointError(
            f'an absolute position embedding of {tokens} patches is for no square image, and for which rectangle it '
            'does not say; load it with the pretrain_img_size it was trained with'
        )
    if source == target:
        return embedding_1TC, ''
    resized = _in_float32(resize_absolute_position_embedding, embedding_1TC, source, target)
    return resized, f'position embedding from {times(source)} to {times(target)}'


def adapt_input_channels(weight_DCHW: Tensor, channels: int) -> tuple[Tensor, str]:
    """The patch embedding's weight for images of another number of channels, and what was done.

    The response to a grey image, whose channels are all equal, is kept: a pixel's weights have the sum they had.
    More channels repeat the old ones in turn, and those that repeat the same one share its weight; fewer channels
    get the sum of those old ones that fall on them in turn. For one channel, and for multiples of the old number,
    this is what timm does.
    """
    old = weight_DCHW.shape[1]
    if channels == old:
        return weight_DCHW, ''
    if channels > old:
        source = torch.arange(channels) % old
        share = torch.bincount(source, minlength=old)[source].to(weight_DCHW.dtype)
        adapted = weight_DCHW[:, source] / share.view(1, -1, 1, 1)
    else:
        adapted = torch.stack([weight_DCHW[:, channel::channels].sum(1) for channel in range(channels)], dim=1)
    return adapted, f'patch embedding from {old} to {channels} channels'


def window_of_index(index: Tensor) -> Optional[Size]:
    """The window that a `relative_position_index`, (N, N) or flat, belongs to; N places, height times width."""
    offsets = index.flatten().tolist()
    places = math.isqrt(len(offsets))
    for width in (width for width in range(1, places + 1) if places % width == 0):
        window = places // width, width
        # Place 0 sees itself in the middle of the table, and the place below it a row of offsets earlier.
        middle = num_offsets(window) // 2
        if offsets[0] == middle and (window[0] == 1 or offsets[width] == middle - (2 * width - 1)):
            return window
    return None


def window_of_coordinates(table_1YX2: Tensor) -> Optional[Size]:
    """The window whose largest offset is 8 before the logarithm in a Swin V2's `relative_coords_table`."""
    if table_1YX2.dim() != 4 or table_1YX2.shape[-1] != 2:
        return None
    window = []
    for axis, largest in enumerate(table_1YX2[0, -1, -1].tolist()):  # log2(1 + 8 offset / (window - 1)) / 3
        offset = table_1YX2.shape[1 + axis] // 2
        window.append(1 + round(8 * offset / (8**largest - 1)) if offset and largest > 0 else 1)
    return window[0], window[1]


def is_ambiguous(table_Rh: Tensor, window_size: Size) -> bool:
    """Whether a table has as many rows for a rectangular window as for a square one, as 5 x 13 and 8 x 8 do."""
    square = window_of_table(table_Rh)
    return square is not None and square != window_size and table_Rh.shape[0] == num_offsets(window_size)


def window_of_table(table_Rh: Tensor) -> Optional[Size]:
    """The square window that a bias table is for, or None."""
    side = (math.isqrt(table_Rh.shape[0]) + 1) // 2
    return (side, side) if num_offsets((side, side)) == table_Rh.shape[0] else None


def _in_float32(resize: Callable[[Tensor, Size, Size], Tensor], tensor: Tensor, source: Size, target: Size) -> Tensor:
    """In float32 at least: not every device interpolates half precision, and it would lose accuracy."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return resize(tensor.to(dtype), source, target).to(tensor.dtype)


def times(size: Size) -> str:
    """A size in words."""
    return f'{size[0]}x{size[1]}'
