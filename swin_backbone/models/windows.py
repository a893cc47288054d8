"""Windows of a batch of maps: the token at each place, and the mask and the bias of attention between places.

A map of H x W tokens is padded with zeros at right and bottom to whole windows. In a shifted block the padded map is
rolled up and left by the shift; windows then tile it (Liu et al. 2021, section 3.2). Here only a map of token indices
is padded, rolled and tiled; one `index_select` by the result takes the tokens. A forward in eager mode caches the
result. Under torch.compile and torch.export the graph computes it, for maps of any size.

Layout: B batch, H W height and width of a map, C channels, T = H*W tokens, L windows of all images, G windows of one
image, N = Wh*Ww places of a window, Y X height and width of a padded map or of a table of offsets, y x of a window, S
side of a padded map, R offsets between places of a window, h heads.
"""

from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..modes import cached_table
from ..sizes import Size

NUM_REGIONS = 3  # of an axis, see `Windows.find_regions`


class Windows(NamedTuple):
    """Windows of maps of one size; sizes may be symbols of a graph.

    Attributes:
        height, width: of the map, in tokens.
        window_size: (Wh, Ww) tokens.
        shift: (rows, columns) that the map is rolled up and left; (0, 0) in a block without shift.
        mask_padding: whether padding is a region of its own, which no token attends to. All published weights were
            trained with False.
        pad_before: (rows, columns) of padding above and left of the map, by which Swin-MLP shifts its windows.
    """

    height: int
    width: int
    window_size: Size
    shift: Size = (0, 0)
    mask_padding: bool = False
    pad_before: Size = (0, 0)

    def partition(self, x_BHWC: Tensor) -> Tensor:
        """Return the windows of maps, row by row, with zeros for padding: (L, N, C)."""
        B, H, W, C = x_BHWC.shape
        tokens_BTC, T = x_BHWC.reshape(B, H * W, C), self.height * self.width
        (rows, columns), (Wh, Ww) = self.count_windows(), self.window_size
        # A graph always pads: comparing symbols adds a guard. torch.func has numbers: `find_tracer` is too wide.
        has_symbols = torch.compiler.is_dynamo_compiling() or not isinstance(T, int)
        if has_symbols or rows * columns * Wh * Ww > T:
            tokens_BTC = F.pad(tokens_BTC, (0, 0, 0, 1))  # token T: zeros, for padding
        token_of_place = find_tokens(self, x_BHWC.device)
        return tokens_BTC.index_select(1, token_of_place).view(B * rows * columns, Wh * Ww, C)

    def reverse(self, y_LNC: Tensor, batch: int) -> Tensor:
        """Put the tokens of windows back on their maps: (B, H, W, C)."""
        (rows, columns), (Wh, Ww), C = self.count_windows(), self.window_size, y_LNC.shape[-1]
        place_of_token = find_places(self, y_LNC.device)
        tokens_BTC = y_LNC.reshape(batch, rows * columns * Wh * Ww, C).index_select(1, place_of_token)
        return tokens_BTC.view(batch, self.height, self.width, C)

    def make_mask(self, device: torch.device) -> Optional[Tensor]:
        """Return where attention is masked, (G, 1, N, N), or None if it is nowhere.

        True where query and key are in different regions. A region of the map is a pair of regions of its axes, see
        `find_regions`.
        """
        if not (any(self.shift) or self.mask_padding):
            return None
        (rows, columns), (Wh, Ww) = self.count_windows(), self.window_size
        row_regions, column_regions = self.find_regions(0, device), self.find_regions(1, device)
        region = row_regions[:, None, :, None] * NUM_REGIONS + column_regions[None, :, None, :]
        region_GN = region.view(rows * columns, Wh * Ww)
        return (region_GN[:, :, None] != region_GN[:, None])[:, None]

    def count_windows(self) -> Size:
        """Return the rows and columns of windows of a map."""
        (above, left), (Wh, Ww) = self.pad_before, self.window_size
        return (above + self.height + Wh - 1) // Wh, (left + self.width + Ww - 1) // Ww

    def find_regions(self, axis: int, device: torch.device) -> Tensor:
        """Return the region of each place along an axis: (windows, places of a window).

        Region 1 is what the roll moved to the end of the axis, region 2 masked padding, and region 0 the rest.
        """
        window, shift, count = self.window_size[axis], self.shift[axis], self.count_windows()[axis]
        place_S = torch.arange(count * window, device=device)
        region_S = (place_S >= count * window - shift).long()
        if self.mask_padding:
            is_padding_S = place_S >= (self.height, self.width)[axis]
            region_S = torch.where(is_padding_S.roll(-shift), 2, region_S)
        return region_S.view(count, window)


# Windows of a shifted map that mix tokens of opposite edges, as indices of windows (B, rows, columns): last column,
# last row, corner. Without `mask_padding` no other window needs a mask.
_ALL, _LAST, _OTHERS = slice(None), slice(-1, None), slice(-1)
EDGE_SLICES = (_ALL, _OTHERS, _LAST), (_ALL, _LAST, _OTHERS), (_ALL, _LAST, _LAST)


@cached_table
def make_edge_masks(window_size: Size, shift: Size, device: torch.device) -> Tensor:
    """Return where attention is masked, for each entry of `EDGE_SLICES`: (3, N, N), see `Windows.make_mask`."""
    masked_G1NN: Any = Windows(2 * window_size[0], 2 * window_size[1], window_size, shift).make_mask(device)
    return masked_G1NN[1:, 0]  # of the map of 2 x 2 windows


@cached_table
def find_tokens(windows: Windows, device: torch.device) -> Tensor:
    """Return the index of the token at each place of one image, from 0 to T - 1, or T at padding: (G * N,)."""
    H, W = windows.height, windows.width
    (rows, columns), (Wh, Ww), (above, left) = windows.count_windows(), windows.window_size, windows.pad_before
    # Tokens are numbered from -T to -1, and T is added at the end: the zeros of `F.pad` become T.
    token_HW = torch.arange(-H * W, 0, device=device).view(H, W)
    token_YX = F.pad(token_HW, (left, columns * Ww - left - W, above, rows * Wh - above - H))
    if any(windows.shift):
        token_YX = token_YX.roll([-shift for shift in windows.shift], (0, 1))
    return _swap_middle(token_YX.view(rows, Wh, columns, Ww)).view(-1) + H * W


@cached_table
def find_places(windows: Windows, device: torch.device) -> Tensor:
    """Return the place of each token in the windows of one image: (T,). The inverse of `find_tokens`."""
    H, W = windows.height, windows.width
    (rows, columns), (Wh, Ww), (above, left) = windows.count_windows(), windows.window_size, windows.pad_before
    place = torch.arange(rows * columns * Wh * Ww, device=device).view(rows, columns, Wh, Ww)
    place_YX = _swap_middle(place).view(rows * Wh, columns * Ww)
    if any(windows.shift):
        place_YX = place_YX.roll(windows.shift, (0, 1))
    row_H, column_W = (torch.arange(first, first + n, device=device) for first, n in ((above, H), (left, W)))
    return place_YX.index_select(0, row_H).index_select(1, column_W).flatten()  # a slice would compare symbols


def _swap_middle(x: Tensor) -> Tensor:
    """Swap the two middle axes. A clone compares no symbols of a graph, unlike `contiguous` and `reshape`."""
    return x.transpose(1, 2).clone(memory_format=torch.contiguous_format)


def make_position_bias(table_Rh: Tensor, window_size: Size, table_window: Optional[Size] = None) -> Tensor:
    """Return the bias (h, N, N) of a window, from a table ((2Wh-1)*(2Ww-1), h).

    A row of the table is an offset, query minus key, from (1 - Wh, 1 - Ww) to (Wh - 1, Ww - 1). The bias is made
    of views, whose gradient is a sum in a fixed order. The backward of an index is not deterministic on CUDA.

    Args:
        table_window: the window of the table; a smaller `window_size` reads the table's centre.
    """
    (table_height, table_width), (Wh, Ww) = table_window or window_size, window_size
    offsets_YXh = table_Rh.unflatten(0, (2 * table_height - 1, 2 * table_width - 1))
    offsets_YXh = offsets_YXh.narrow(0, table_height - Wh, 2 * Wh - 1).narrow(1, table_width - Ww, 2 * Ww - 1)
    # Wh = 2: the rows -1, 0, 1 unfold to [[-1, 0], [0, 1]], and flip to [[0, -1], [1, 0]], query minus key.
    bias_yxhyx = offsets_YXh.unfold(0, Wh, 1).unfold(1, Ww, 1).flip(3, 4)
    return bias_yxhyx.permute(2, 0, 1, 3, 4).reshape(-1, Wh * Ww, Wh * Ww)


def fit_window(height: int, width: int, window_size: Size, shift: Size) -> tuple[Size, Size]:
    """Return window and shift for a map under `small_map='shrink'`, as in microsoft/Swin-Transformer's classifiers.

    If a side of the map is no longer than the window's, no side of the window exceeds the map's smaller side, and the
    window does not shift.
    """
    if height > window_size[0] and width > window_size[1]:
        return window_size, shift
    side = min(height, width)
    return (min(side, window_size[0]), min(side, window_size[1])), (0, 0)
