"""Resize tensors of a checkpoint for another window, image, or number of input channels."""

import math
from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

from ..positions import resize_absolute_position_embedding, resize_relative_position_bias_table
from ..sizes import Size, count_offsets, format_size
from .errors import CheckpointError


def choose_window_size(table_Rh: Tensor, known: Optional[Size], target: Size) -> Size:
    """Return the window of a relative position bias table.

    Args:
        known: the window named in the checkpoint, or None.
        target: the window of the backbone; assumed if the numbers of rows are equal. Otherwise a square is assumed.

    Raises:
        CheckpointError: if the table is for an unknown rectangle.
    """
    rows = table_Rh.shape[0]
    window = known or (target if rows == count_offsets(target) else infer_square(table_Rh))
    if window is None:
        raise CheckpointError(
            f'a relative position bias table of {rows} rows is for no square window, and for which rectangle it '
            'does not say; load it at the window it was trained with'
        )
    return window


def resize_table(table_Rh: Tensor, source: Size, target: Size) -> tuple[Tensor, str]:
    """Resize a relative position bias table from window `source` to `target`; also return the change, '' for none.

    Bicubic, each head by itself, as microsoft/Swin-Transformer does.
    """
    if source == target:
        return table_Rh, ''
    resized = _resize_wide(resize_relative_position_bias_table, table_Rh, source, target)
    return resized, f'bias tables from window {format_size(source)} to {format_size(target)}'


def choose_map_size(embedding_1TC: Tensor, known: Optional[Size], target: Size) -> Size:
    """Return the (height, width) patches of an absolute position embedding; see `choose_window_size`."""
    tokens, side = embedding_1TC.shape[1], math.isqrt(embedding_1TC.shape[1])
    size = known or (target if tokens == math.prod(target) else (side, side))
    if math.prod(size) != tokens:
        raise CheckpointError(
            f'an absolute position embedding of {tokens} patches is for no square image, and for which rectangle it '
            'does not say; load it with the pretrain_img_size it was trained with'
        )
    return size


def resize_embedding(embedding_1TC: Tensor, source: Size, target: Size) -> tuple[Tensor, str]:
    """Resize an absolute position embedding to `target` (height, width) patches; see `resize_table`."""
    if source == target:
        return embedding_1TC, ''
    resized = _resize_wide(resize_absolute_position_embedding, embedding_1TC, source, target)
    return resized, f'position embedding from {format_size(source)} to {format_size(target)}'


def adapt_input_channels(weight_DCHW: Tensor, channels: int) -> tuple[Tensor, str]:
    """Adapt the weight of the patch embedding to another number of channels; also return the change, '' for none.

    The response to a grey image is kept. More channels repeat the old channels in turn, and repetitions share the
    weight. Fewer channels get the sum of old channels in turn. For one channel, and for multiples of the old number,
    the result is timm's.
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


def make_index_table(window_size: Size) -> Tensor:
    """Return the `relative_position_index` of a window: the row of the bias table for query and key, (N, N)."""
    (height, width), place_N = window_size, torch.arange(math.prod(window_size))
    row_N, column_N = place_N // width, place_N % width
    rows, columns = row_N[:, None] - row_N + height - 1, column_N[:, None] - column_N + width - 1
    return rows * (2 * width - 1) + columns


def infer_window_of_index(index: Tensor) -> Optional[Size]:
    """Return the window of a `relative_position_index`, (N, N) or flat, of N = height x width places.

    None for no such index, and for a window of one row or column: 1xN and Nx1 have equal indices.
    """
    offsets = index.flatten().tolist()
    num_places = math.isqrt(len(offsets))
    for width in (width for width in range(2, num_places // 2 + 1) if num_places % width == 0):
        window = num_places // width, width
        # The index of place 0 to itself is the middle of the table, to the place below a row of offsets earlier.
        middle = count_offsets(window) // 2
        if offsets[0] == middle and offsets[width] == middle - (2 * width - 1):
            return window
    return None


def infer_window_of_coordinates(table_1YX2: Tensor) -> Optional[Size]:
    """Return the window that scales the offsets in the `relative_coords_table` of a Swin V2."""
    if table_1YX2.dim() != 4 or table_1YX2.shape[-1] != 2 or not table_1YX2.numel() or table_1YX2.is_complex():
        return None
    window = []
    for axis, largest in enumerate(table_1YX2[0, -1, -1].tolist()):  # log2(1 + 8 offset / (window - 1)) / 3
        offset = table_1YX2.shape[1 + axis] // 2
        scaled = math.expm1(min(largest, 99) * math.log(8))  # no number of a damaged table overflows
        window.append(1 + round(8 * offset / scaled) if offset and scaled > 0 else 1)
    return window[0], window[1]


def infer_square(table_Rh: Tensor) -> Optional[Size]:
    """Return the square window of a bias table, or None."""
    side = (math.isqrt(table_Rh.shape[0]) + 1) // 2
    return (side, side) if count_offsets((side, side)) == table_Rh.shape[0] else None


def _resize_wide(resize: Callable[[Tensor, Size, Size], Tensor], tensor: Tensor, source: Size, target: Size) -> Tensor:
    """Resize in float32 at least, since some devices do not interpolate half precision."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return resize(tensor.to(dtype), source, target).to(tensor.dtype)
