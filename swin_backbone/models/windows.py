"""Windows of a batch of maps: the token at each place, and the mask of attention between places.

A map of H x W tokens is padded with zeros at right and bottom to whole windows. In a shifted block the padded map is
rolled up and left by the shift; windows then tile it (Liu et al. 2021, section 3.2). Here only a map of token numbers
is padded, rolled and tiled; one `index_select` by the result takes the tokens. A forward in eager mode caches the
result. A graph computes it, for maps of any size.

Layout: B batch, H W height and width of a map, C channels, T = H*W tokens, L windows of all images, N = Wh*Ww places of
a window, Y X height and width of a padded map, S side of a padded map.
"""

from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compat import cached_table
from ..positions import Size


class Windows(NamedTuple):
    """Windows of maps of one size; sizes may be symbols of a graph.

    Attributes:
        height, width: of the map, in tokens.
        window_size: (Wh, Ww) tokens.
        shift: (rows, columns) of the shift; (0, 0) in a block without shift.
        mask_padding: whether padding is a region of its own, which no token attends to. All published weights were
            trained with False.
        rolls: True: a shift rolls the map. False: a shift pads `window - shift` places above and left of it (Swin-MLP).
        pads_first: True: the map is padded, then rolled. False: the map is rolled, then padded (timm).
    """

    height: int
    width: int
    window_size: Size
    shift: Size = (0, 0)
    mask_padding: bool = False
    rolls: bool = True
    pads_first: bool = True

    def partition(self, x_BHWC: Tensor) -> Tensor:
        """Return the windows of maps, row by row, with zeros for padding: (L, N, C)."""
        B, H, W, C = x_BHWC.shape
        tokens_BTC = x_BHWC.reshape(B, H * W, C)
        if self._has_padding():
            tokens_BTC = F.pad(tokens_BTC, (0, 0, 0, 1))  # token T: zeros, for padding
        (rows, columns), (Wh, Ww) = self.counts(), self.window_size
        token_at = find_tokens(self, x_BHWC.device)
        return tokens_BTC.index_select(1, token_at).view(B * rows * columns, Wh * Ww, C)

    def reverse(self, y_LNC: Tensor, batch: int) -> Tensor:
        """Put the tokens of windows back on their maps: (B, H, W, C)."""
        (rows, columns), (Wh, Ww), C = self.counts(), self.window_size, y_LNC.shape[-1]
        place_of = find_places(self, y_LNC.device)
        tokens_BTC = y_LNC.reshape(batch, rows * columns * Wh * Ww, C).index_select(1, place_of)
        return tokens_BTC.view(batch, self.height, self.width, C)

    def mask(self, device: torch.device) -> Optional[Tensor]:
        """Return whether two places attend to each other, by window of one image: (L, 1, N, N); None: all do.

        Places attend to each other inside a region, see `regions`.
        """
        if not self.rolls or not (any(self.shift) or self.mask_padding):
            return None
        (rows, columns), (Wh, Ww) = self.counts(), self.window_size
        row_regions, column_regions = self.regions(0, device), self.regions(1, device)
        region_LN = (row_regions[:, None, :, None] * 3 + column_regions[None, :, None, :]).view(rows * columns, Wh * Ww)
        return (region_LN[:, :, None] == region_LN[:, None])[:, None]

    def edges(self, device: torch.device) -> list[tuple[slice, slice, Tensor]]:
        """Return the windows with tokens of opposite edges of the map: last row, last column, corner.

        Returns:
            Three times (rows, columns, `pairs_apart` (N, N)). Without `mask_padding` no other window needs a mask.
        """
        if not self.rolls or not any(self.shift):
            return []
        before, last = slice(None, -1), slice(-1, None)
        parts = (last, before), (before, last), (last, last)
        return [(*part, apart) for part, apart in zip(parts, pairs_apart(self.window_size, self.shift, device))]

    def counts(self) -> Size:
        """Return the numbers of windows in a column and in a row."""
        rows, columns = (
            (before + length + window - 1) // window
            for length, window, before in zip((self.height, self.width), self.window_size, self.places_before())
        )
        return rows, columns

    def places_before(self) -> Size:
        """Return the numbers of places above and left of the map."""
        above, left = (
            0 if self.rolls or not shift else window - shift for window, shift in zip(self.window_size, self.shift)
        )
        return above, left

    def _has_padding(self) -> bool:
        """Return whether a place may be padding. True in a graph, which must not compare sizes."""
        has_symbols = not (isinstance(self.height, int) and isinstance(self.width, int))
        if has_symbols or torch.compiler.is_dynamo_compiling() or any(self.places_before()):
            return True
        return bool(self.height % self.window_size[0] or self.width % self.window_size[1])

    def regions(self, axis: int, device: torch.device) -> Tensor:
        """Return the region of each place along an axis: (windows, places of a window).

        Region 1 is what the roll moved to the end of the axis, region 2 masked padding, and region 0 the rest.
        """
        window, shift, count = self.window_size[axis], self.shift[axis], self.counts()[axis]
        place_S = torch.arange(count * window, device=device)
        region_S = (place_S >= count * window - shift).long()
        if self.mask_padding:
            is_padding_S = place_S >= (self.height, self.width)[axis]
            region_S = torch.where(is_padding_S.roll(-shift) if self.pads_first else is_padding_S, 2, region_S)
        return region_S.view(count, window)

    def rolls_when(self, padded: bool) -> bool:
        """Return whether the map is rolled after padding if `padded`, or before padding if not."""
        return self.rolls and any(self.shift) and self.pads_first == padded


@cached_table
def pairs_apart(window_size: Size, shift: Size, device: torch.device) -> Tensor:
    """Return whether two places are in different regions: (3, N, N), in the last row, the last column, the corner."""
    regions = [torch.arange(side, device=device) >= side - cut for side, cut in zip(window_size, shift)]
    of_row_N, of_column_N = (region.flatten() for region in torch.meshgrid(*regions, indexing='ij'))
    bottom, right = (region_N[:, None] != region_N for region_N in (of_row_N, of_column_N))
    return torch.stack([bottom, right, bottom | right])


@cached_table
def find_tokens(windows: Windows, device: torch.device) -> Tensor:
    """Return the number of the token at each place of one image, from 0 to T - 1, or T at padding: (L * N,)."""
    H, W = windows.height, windows.width
    (rows, columns), (Wh, Ww), (above, left) = windows.counts(), windows.window_size, windows.places_before()
    up_left = [-shift for shift in windows.shift]
    # `F.pad` pads with 0, and padding has the number T. So the numbers lack T until the end: tokens are -T to -1.
    token_HW = torch.arange(-H * W, 0, device=device).view(H, W)
    if windows.rolls_when(padded=False):
        token_HW = token_HW.roll(up_left, (0, 1))
    token_YX = F.pad(token_HW, (left, columns * Ww - left - W, above, rows * Wh - above - H))
    if windows.rolls_when(padded=True):
        token_YX = token_YX.roll(up_left, (0, 1))
    return _swap_middle(token_YX.view(rows, Wh, columns, Ww)).view(-1) + H * W


@cached_table
def find_places(windows: Windows, device: torch.device) -> Tensor:
    """Return the place of each token in the windows of one image: (T,). The inverse of `find_tokens`."""
    H, W = windows.height, windows.width
    (rows, columns), (Wh, Ww), (above, left) = windows.counts(), windows.window_size, windows.places_before()
    place = torch.arange(rows * columns * Wh * Ww, device=device).view(rows, columns, Wh, Ww)
    place_YX = _swap_middle(place).view(rows * Wh, columns * Ww)
    if windows.rolls_when(padded=True):
        place_YX = place_YX.roll(windows.shift, (0, 1))
    row_H, column_W = (torch.arange(first, first + n, device=device) for first, n in ((above, H), (left, W)))
    place_HW = place_YX.index_select(0, row_H).index_select(1, column_W)  # a slice would compare symbols
    if windows.rolls_when(padded=False):
        place_HW = place_HW.roll(windows.shift, (0, 1))
    return place_HW.flatten()


def _swap_middle(x: Tensor) -> Tensor:
    """Swap the two middle axes. A clone compares no symbols of a graph, unlike `contiguous` and `reshape`."""
    return x.transpose(1, 2).clone(memory_format=torch.contiguous_format)


def windows_of(x_BHWC: Tensor, window_size: Size, shift: Size, small_map: str, mask_padding: bool) -> Windows:
    """Return the windows of maps; for the arguments see `SwinBlock`."""
    H, W = (int(n) if isinstance(n, Tensor) else n for n in x_BHWC.shape[1:3])  # a tracer's sizes are tensors
    if small_map == 'shrink':  # 'pad' compares no sizes: a comparison is a guard of torch.compile
        window_size, shift = fit_window(H, W, window_size, shift)
    return Windows(H, W, window_size, shift, mask_padding)


def fit_window(height: int, width: int, window_size: Size, shift: Size) -> tuple[Size, Size]:
    """Return window and shift for a map under `small_map='shrink'`, as in microsoft/Swin-Transformer's classifiers.

    If a side of the map is no longer than the window's, no side of the window exceeds the map's smaller side, and the
    window does not shift.
    """
    if height > window_size[0] and width > window_size[1]:
        return window_size, shift
    side = min(height, width)
    return (min(side, window_size[0]), min(side, window_size[1])), (0, 0)
