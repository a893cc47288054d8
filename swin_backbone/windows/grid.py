"""Where the tokens of a feature map sit in windows, shifted or not: index arithmetic, and no tensor of values.

A map of H x W tokens is padded at right and bottom to whole windows and, in a shifted block, rolled by the
shift; windows then tile it. A `WindowGrid` holds, for each place of each window, the token that sits there.

Tokens that meet in a window only because the roll wrapped around must not attend to each other. Which pairs
those are depends only on whether the window is the last of its row and of its column: interior, right edge,
bottom edge, corner. Windows of one kind stand together, so a mask is a handful of (N, N) tables, whatever the
resolution (Liu et al. 2021, section 3.2, "Efficient batch computation for shifted configuration").

Layout: B batch, H W height and width of a map, L windows of all images, N = Wh*Ww places of a window.
"""

from itertools import groupby, product
from typing import NamedTuple, Optional

import torch
from torch import Tensor

Size = tuple[int, int]


class Geometry(NamedTuple):
    """Where the windows of a batch of maps lie."""

    batch: int  # B maps of H x W tokens
    height: int
    width: int
    window_size: Size  # (Wh, Ww) tokens
    shift: Size  # by how many tokens the padded map is rolled up and left first; (0, 0) in a block without shift
    # Make padding a region of its own, to which no token attends. False is how all published weights were trained:
    # padding takes part as a key.
    mask_padding: bool
    device: torch.device  # where index tables live


class WindowGroup(NamedTuple):
    """`length` consecutive windows of one kind; `mask_NN` is True where a query (row) may attend to a key."""

    length: int
    mask_NN: Optional[Tensor]  # None: everywhere


class WindowGrid:
    """The windows of a batch of maps; windows of one kind stand together, and take turns among the images."""

    def __init__(self, geometry: Geometry):
        batch, height, width, window_size, shift, mask_padding, device = geometry
        self.tokens_per_image = height * width
        self.window_area = window_size[0] * window_size[1]
        rows_of, row_pieces, same_row = _axis(height, window_size[0], shift[0], mask_padding, device)
        columns_of, column_pieces, same_column = _axis(width, window_size[1], shift[1], mask_padding, device)
        images_B = torch.arange(batch, device=device) * (height * width)
        pieces = []
        for (row_cut, rows_padded, rows), (column_cut, columns_padded, columns) in product(row_pieces, column_pieces):
            y = rows_of[rows][:, None, None, :, None]  # row window, column window, image, Wh, Ww
            x = columns_of[columns][None, :, None, None, :]
            token = torch.where((y < height) & (x < width), y * width + x + images_B[:, None, None], -1)
            pieces.append(((row_cut, column_cut), rows_padded or columns_padded, token.reshape(-1, self.window_area)))
        # Windows of one kind together, those without a mask first, and of each kind those without padding first:
        # most strips then have neither.
        pieces.sort(key=lambda piece: piece[:2])
        self.token_at_LN = torch.cat([token_LN for _, _, token_LN in pieces])  # -1 for padding
        groups = []
        for (row_cut, column_cut), of_kind in groupby(pieces, key=lambda piece: piece[0]):
            mask_NN = _pair_mask(same_row[row_cut], same_column[column_cut], window_size)
            groups.append(WindowGroup(sum(token_LN.shape[0] for _, _, token_LN in of_kind), mask_NN))
        self.groups = tuple(groups)
        self.num_windows = len(self.token_at_LN)

    def groups_between(self, start: int, stop: int) -> tuple[WindowGroup, ...]:
        """The groups that windows start..stop are made of."""
        cut, begin = [], 0
        for length, mask_NN in self.groups:
            end = begin + length
            overlap = min(end, stop) - max(begin, start)
            if overlap > 0:
                cut.append(WindowGroup(overlap, mask_NN))
            begin = end
        return tuple(cut)


class PaddedGrid(WindowGrid):
    """Windows that are shifted by padding and not by rolling, as in Swin-MLP (microsoft/Swin-Transformer).

    Windows of side w that are shifted by s places begin w - s places before the map. So tokens of opposite edges are
    never in one window, and no window needs a mask, but an axis can have one more window. `mask_padding` has no effect,
    since padding is zeros.
    """

    def __init__(self, geometry: Geometry):
        batch, height, width, window_size, shift, _, device = geometry
        self.tokens_per_image = height * width
        self.window_area = window_size[0] * window_size[1]
        rows_nW, columns_nW = (
            (torch.arange(count_windows(length, side, before) * side, device=device) - before).view(-1, side)
            for length, side, before in zip((height, width), window_size, places_before(window_size, shift))
        )
        y, x = rows_nW[:, None, None, :, None], columns_nW[None, :, None, None, :]  # windows, image, places
        images_B11 = torch.arange(batch, device=device)[:, None, None] * (height * width)
        on_map = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        token_at_LN = torch.where(on_map, y * width + x + images_B11, -1).view(-1, self.window_area)
        padded_L = (token_at_LN < 0).any(1)
        self.token_at_LN = token_at_LN[padded_L.long().argsort(stable=True)]  # those without padding first
        self.num_windows = len(token_at_LN)
        self.groups = (WindowGroup(self.num_windows, None),)


def places_before(window_size: Size, shift: Size) -> Size:
    """How many places of the first row and the first column of windows are before the map."""
    rows, columns = (side - by if by else 0 for side, by in zip(window_size, shift))
    return rows, columns


def count_windows(length: int, side: int, before: int) -> int:
    """How many windows an axis has."""
    return (before + length + side - 1) // side


def fit_window(height: int, width: int, window_size: Size, shift: Size) -> tuple[Size, Size]:
    """The window and shift for a map under `small_map='shrink'`, as in microsoft/Swin-Transformer's classifiers.

    A map no larger than the window on some side gets windows of its smaller side, and no shift.
    """
    if height > window_size[0] and width > window_size[1]:
        return window_size, shift
    side = min(height, width)
    return (min(side, window_size[0]), min(side, window_size[1])), (0, 0)


Piece = tuple[int, bool, slice]


def _axis(
    length: int, window: int, shift: int, mask_padding: bool, device: torch.device
) -> tuple[Tensor, list[Piece], list[Optional[Tensor]]]:
    """Windows along one axis: coordinates (n, W), >= length for padding; pieces; and the mask of each kind.

    A piece is (kind, whether there is padding, slice of windows). Kind 0 has no mask. The others are single windows,
    with a mask (W, W) that says which pairs of places are in one region: only the last window can be cut by the
    roll; padding, when it is masked, can reach into the last but one of a shifted axis as well.
    """
    num_windows = (length + window - 1) // window
    padded = num_windows * window
    rolled = torch.arange(padded, device=device)
    coordinates_nW = ((rolled + shift) % padded).view(num_windows, window)
    region_nW = (rolled >= padded - shift).view(num_windows, window).long()
    num_cut = 1 if shift else 0
    if mask_padding:
        region_nW = torch.where(coordinates_nW >= length, 2, region_nW)
        padding = padded - length
        num_cut = min(num_windows, 1 + (padding > window - shift)) if shift or padding else 0
    num_plain = num_windows - num_cut
    num_full = max(0, min(num_plain, (length - shift) // window))  # plain windows that no padding reaches into
    pieces = [(0, False, slice(0, num_full)), (0, True, slice(num_full, num_plain))]
    pieces = [piece for piece in pieces if piece[2].start < piece[2].stop]
    masks: list[Optional[Tensor]] = [None]
    for i in range(num_plain, num_windows):
        pieces.append((len(masks), padded > length, slice(i, i + 1)))
        masks.append(region_nW[i][:, None] == region_nW[i])
    return coordinates_nW, pieces, masks


def _pair_mask(same_row: Optional[Tensor], same_column: Optional[Tensor], window_size: Size) -> Optional[Tensor]:
    """The mask (N, N) of a window, from those of its row (Wh, Wh) and its column (Ww, Ww)."""
    if same_row is None and same_column is None:
        return None
    # query row, query column, key row, key column
    of_rows = torch.ones(1, 1, 1, 1, dtype=torch.bool) if same_row is None else same_row[:, None, :, None]
    of_columns = torch.ones_like(of_rows[:1, :, :1]) if same_column is None else same_column[None, :, None, :]
    N = window_size[0] * window_size[1]
    return (of_rows.to(of_columns.device) & of_columns).expand(*window_size, *window_size).reshape(N, N)
