"""Windows, regions and attention masks of a map of tokens, as arrays for pictures.

They are computed by the model's `Windows`.

Layout: H W height and width of a map padded to whole windows, L windows, N places of a window, R C rows and columns of
windows.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...models.windows import Windows, find_tokens
from ...sizes import Size

PADDING = -1


class MaskKind(NamedTuple):
    """Windows with an equal attention mask.

    Args:
        name: 'interior', 'right edge', 'bottom edge', 'corner'; more with masked padding.
        mask_NN: True if the query (row) may attend to the key (column).
    """

    name: str
    mask_NN: NDArray[Any]


class WindowLayout(NamedTuple):
    """A map cut into windows.

    A rolled map is padded to whole windows, and moved up and left by the shift.

    Args:
        size: height and width of the map, without padding.
        token_HW: number of the token at each place of the rolled map; -1 for padding.
        window_HW: number of the window of each place of the rolled map.
        region_HW: index of REGIONS, for each place of the rolled map. Tokens of a window attend within their region.
        kind_RC: index of `kinds`, for each window.
    """

    size: Size
    window_size: Size
    shift: Size
    token_HW: NDArray[Any]
    window_HW: NDArray[Any]
    region_HW: NDArray[Any]
    kind_RC: NDArray[Any]
    kinds: tuple[MaskKind, ...]

    def roll_back(self, map_HW: NDArray[Any]) -> NDArray[Any]:
        """Return a rolled map in the places of the image."""
        return np.roll(map_HW, self.shift, axis=(0, 1))


REGIONS = ('not wrapped', 'columns wrapped around', 'rows wrapped around', 'both wrapped around', 'masked padding')


def map_size(image_size: Size, stage: int) -> Size:
    """Return height and width in tokens of a stage's map, for an image of (height, width) pixels.

    Args:
        stage: number of the stage, from 1 to 4.
    """
    height, width = image_size
    stride = 2 ** (stage + 1)
    return -(-height // stride), -(-width // stride)


def lay_out(size: Size, window_size: Size, shifted: bool, mask_padding: bool = False) -> WindowLayout:
    """Cut a map of (height, width) tokens as a block of the backbone does. The shift is half a window."""
    shift = (window_size[0] // 2, window_size[1] // 2) if shifted else (0, 0)
    windows = Windows(*size, window_size, shift, mask_padding)
    cpu = torch.device('cpu')
    rows, columns = windows.count_windows()
    Wh, Ww = window_size
    token_at = find_tokens(windows, cpu)
    token_RhCw = token_at.where(token_at < math.prod(size), PADDING).view(rows, columns, Wh, Ww).transpose(1, 2)
    token_HW = token_RhCw.reshape(rows * Wh, columns * Ww).numpy()
    number_RC = np.arange(rows * columns).reshape(rows, columns)
    labels_RW, labels_CW = (  # regions of a window, numbered from 0
        np.stack(
            [np.unique(regions_W, return_inverse=True)[1] for regions_W in windows.find_regions(axis, cpu).numpy()]
        )
        for axis in (0, 1)
    )
    region_HW = 2 * (labels_RW.ravel() > 0)[:, None] + (labels_CW.ravel() > 0)
    region_HW[(token_HW == PADDING) & mask_padding] = REGIONS.index('masked padding')

    kinds: dict[tuple[bytes, bytes], MaskKind] = {}
    kind_RC = np.zeros((rows, columns), int)
    for row, column in np.ndindex(rows, columns):
        row_labels, column_labels = labels_RW[row], labels_CW[column]
        pattern = row_labels.tobytes(), column_labels.tobytes()
        if pattern not in kinds:
            cut = bool(row_labels.any()), bool(column_labels.any())
            label_N = (row_labels[:, None] * Ww + column_labels).ravel()
            name = _name_window(cut, (row, column), (rows, columns))
            kinds[pattern] = MaskKind(name, label_N[:, None] == label_N)
        kind_RC[row, column] = list(kinds).index(pattern)
    window_HW = number_RC.repeat(Wh, 0).repeat(Ww, 1)
    return WindowLayout(size, window_size, shift, token_HW, window_HW, region_HW, kind_RC, tuple(kinds.values()))


def _name_window(cut: tuple[bool, bool], position: tuple[int, int], counts: Sequence[int]) -> str:
    """Return the name of a window by its position. `cut`: whether regions of rows and of columns meet in it."""
    if not any(cut):
        return 'interior'
    is_inner = [index < count - 1 for index, count in zip(position, counts)]
    if all(cut):
        away = ' and '.join(f'one {way}' for way, inner in zip(('up', 'left'), is_inner) if inner)
        return f'corner ({away})' if away else 'corner'
    axis = cut.index(True)
    return ('next to ' if is_inner[axis] else '') + ('bottom edge', 'right edge')[axis]
