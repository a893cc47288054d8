"""Where the tokens of a feature map sit in windows, shifted or not.

A map of H x W tokens is padded at right and bottom to whole windows and, in a shifted block, rolled by the
shift; windows then tile it. All of that is index arithmetic: a `WindowGrid` holds, for each place of each
window, the row of `x_TC` that sits there, so that one gather stands for pad, roll and partition, and one
gather back for reverse, roll and crop.

Tokens that meet in a window only because the roll wrapped around must not attend to each other. Which pairs
those are depends only on whether the window is the last of its row and of its column: interior, right edge,
bottom edge, corner. Windows of one kind stand together, so a mask is a handful of (N, N) tables, whatever the
resolution (Liu et al. 2021, section 3.2, "Efficient batch computation for shifted configuration").

Layout: B batch, H W height and width of a map, C channels, T = B*H*W tokens, L windows of all images,
N = Wh*Ww places of a window.
"""

from functools import lru_cache, wraps
from itertools import product
from typing import Callable, NamedTuple, Optional

import torch
from torch import Tensor

Size = tuple[int, int]
CACHED_GRIDS = 64  # a Swin at one input size uses 8: two shifts in each of four stages


class Run(NamedTuple):
    """`count` consecutive windows of one kind; `mask_NN` is True where a query (row) may attend to a key."""

    count: int
    mask_NN: Optional[Tensor]  # None: everywhere


class Strip(NamedTuple):
    """Some consecutive windows of a grid, and the tokens in them."""

    tokens_T: Optional[Tensor]  # the rows of x_TC in these windows; None: every row, in the map's order
    token_at_P: Optional[Tensor]  # for each place of each window, its token; None: tokens stand in place already
    padding_P: Optional[Tensor]  # the places that hold no token
    place_of_T: Optional[Tensor]  # for each token, its place: the inverse of token_at_P
    window_area: int  # N
    runs: tuple[Run, ...]

    def to_windows(self, x_TC: Tensor) -> Tensor:
        """Put tokens (T, C) in their places: (L, N, C), zeros where a window reaches over the map's edge."""
        if self.token_at_P is not None:
            x_TC = _rearrange(x_TC, self.token_at_P, self.padding_P, self.place_of_T, None)
        return x_TC.view(-1, self.window_area, x_TC.shape[-1])

    def to_tokens(self, x_LNC: Tensor) -> Tensor:
        """Take tokens out of their places: (T, C). What padding holds is dropped."""
        x_PC = x_LNC.reshape(-1, x_LNC.shape[-1])
        if self.token_at_P is not None:
            x_PC = _rearrange(x_PC, self.place_of_T, None, self.token_at_P, self.padding_P)
        return x_PC


class WindowGrid:
    """The windows of a batch of maps; windows of one kind stand together, and take turns among the images.

    Args:
        batch, height, width: B maps of H x W tokens, the rows of x_TC.
        window_size: (Wh, Ww) tokens.
        shift: by how many tokens the padded map is rolled up and left first; (0, 0) in a block without shift.
        mask_padding: make padding a region of its own, to which no token attends. False is how all published
            weights were trained: padding takes part as a key.
        device: where the index tables live.
    """

    def __init__(
        self,
        batch: int,
        height: int,
        width: int,
        window_size: Size,
        shift: Size,
        mask_padding: bool,
        device: torch.device,
    ):
        self.num_tokens = batch * height * width
        self.window_area = window_size[0] * window_size[1]
        rows_of, row_kinds = _axis(height, window_size[0], shift[0], mask_padding, device)
        columns_of, column_kinds = _axis(width, window_size[1], shift[1], mask_padding, device)
        images_B = torch.arange(batch, device=device) * (height * width)
        token_at, runs = [], []
        for (row_windows, same_row), (column_windows, same_column) in product(row_kinds, column_kinds):
            y = rows_of[row_windows][:, None, None, :, None]  # row window, column window, image, Wh, Ww
            x = columns_of[column_windows][None, :, None, None, :]
            token = torch.where((y < height) & (x < width), y * width + x + images_B[:, None, None], -1)
            token_at.append(token.reshape(-1, self.window_area))
            runs.append(Run(token_at[-1].shape[0], _pair_mask(same_row, same_column, window_size)))
        self.token_at_LN = torch.cat(token_at)  # -1 for padding
        self.runs = tuple(runs)

    @property
    def num_windows(self) -> int:
        return self.token_at_LN.shape[0]

    def whole(self) -> Strip:
        """All windows as one strip, over tokens in the map's own order."""
        return _whole(self)

    def strips(self, windows_per_strip: int) -> list[Strip]:
        """All windows in strips of at most `windows_per_strip`, alike in size; a token is in exactly one."""
        return _strips(self, windows_per_strip)


def bounded_cache(build: Callable) -> Callable:
    """A bounded cache for index tables; it steps aside under torch.compile and export, where sizes are symbols."""

    @lru_cache(maxsize=CACHED_GRIDS)
    def cached(*args):
        with torch.inference_mode(False):  # an inference tensor could not be saved for a later backward
            return build(*args)

    @wraps(build)
    def call(*args):
        return build(*args) if torch.compiler.is_compiling() else cached(*args)

    call.cache_info, call.cache_clear = cached.cache_info, cached.cache_clear
    return call


window_grid = bounded_cache(WindowGrid)


@bounded_cache
def _whole(grid: WindowGrid) -> Strip:
    token_at_P = grid.token_at_LN.flatten()
    # Sorted by token, the places of padding come first and the others in the map's order: no size depends on
    # the data, so this traces with symbolic sizes too.
    place_by_token = token_at_P.argsort(stable=True)
    num_padding = token_at_P.shape[0] - grid.num_tokens
    padding_P, place_of_T = place_by_token[:num_padding], place_by_token[num_padding:]
    return Strip(None, token_at_P.clamp(min=0), padding_P, place_of_T, grid.window_area, grid.runs)


@bounded_cache
def _strips(grid: WindowGrid, windows_per_strip: int) -> list[Strip]:
    num_strips = -(-grid.num_windows // windows_per_strip)
    bounds = [grid.num_windows * i // num_strips for i in range(num_strips + 1)]
    return [_cut(grid, *ends) for ends in zip(bounds, bounds[1:])]


def _cut(grid: WindowGrid, start: int, stop: int) -> Strip:
    """Windows start..stop of a grid, over just the tokens in them."""
    token_at_P = grid.token_at_LN[start:stop].flatten()
    runs = _cut_runs(grid.runs, start, stop)
    is_token_P = token_at_P >= 0
    tokens_T = token_at_P[is_token_P]
    if tokens_T.shape == token_at_P.shape:
        return Strip(tokens_T, None, None, None, grid.window_area, runs)
    local_at_P = (is_token_P.cumsum(0) - 1).clamp(min=0)
    padding_P, place_of_T = (~is_token_P).nonzero()[:, 0], is_token_P.nonzero()[:, 0]
    return Strip(tokens_T, local_at_P, padding_P, place_of_T, grid.window_area, runs)


def fit_window(height: int, width: int, window_size: Size, shift: Size, small_map: str) -> tuple[Size, Size]:
    """The window and shift for a map, which may be smaller than the window.

    With `small_map='pad'` they stay (mmdet and mmseg). With 'shrink', a map no larger than the window on some
    side gets windows of its smaller side and no shift (microsoft/Swin-Transformer, the classifiers).
    """
    if small_map == 'pad' or (height > window_size[0] and width > window_size[1]):
        return window_size, shift
    side = min(height, width)
    return (min(side, window_size[0]), min(side, window_size[1])), (0, 0)


def _axis(length: int, window: int, shift: int, mask_padding: bool, device: torch.device):
    """Windows along one axis: coordinates (n, W), >= length for padding, and [(slice of windows, same_WW)].

    `same_WW` says which pairs of places are in one region; None where all are. Only the last window can be
    cut by the roll; padding, when it is masked, can reach into the last but one of a shifted axis as well.
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
    kinds = [(slice(0, num_plain), None)] if num_plain else []
    for i in range(num_plain, num_windows):
        kinds.append((slice(i, i + 1), region_nW[i][:, None] == region_nW[i]))
    return coordinates_nW, kinds


def _pair_mask(same_row: Optional[Tensor], same_column: Optional[Tensor], window_size: Size) -> Optional[Tensor]:
    if same_row is None and same_column is None:
        return None
    N = window_size[0] * window_size[1]
    shape = (*window_size, *window_size)  # query row, query column, key row, key column
    if same_row is None:
        return same_column[None, :, None, :].expand(shape).reshape(N, N)
    if same_column is None:
        return same_row[:, None, :, None].expand(shape).reshape(N, N)
    return (same_row[:, None, :, None] & same_column[None, :, None, :]).reshape(N, N)


def _cut_runs(runs: tuple[Run, ...], start: int, stop: int) -> tuple[Run, ...]:
    """The runs that windows start..stop are made of."""
    cut, begin = [], 0
    for count, mask_NN in runs:
        end = begin + count
        overlap = min(end, stop) - max(begin, start)
        if overlap > 0:
            cut.append(Run(overlap, mask_NN))
        begin = end
    return tuple(cut)


def _rearrange(
    x: Tensor, index: Tensor, zero_at: Optional[Tensor], back_index: Tensor, back_zero_at: Optional[Tensor]
) -> Tensor:
    """x[index] with zeros at `zero_at`, where `back_index` and `back_zero_at` describe the transposed map."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rearrange.apply(x, index, zero_at, back_index, back_zero_at)
    return _select_rows(x, index, zero_at)


def _select_rows(x: Tensor, index: Tensor, zero_at: Optional[Tensor]) -> Tensor:
    out = x.index_select(0, index)
    return out if zero_at is None else out.index_fill_(0, zero_at, 0)


class _Rearrange(torch.autograd.Function):
    """Gather and scatter are each other's transpose, so backward is a gather too, and never an atomic add."""

    @staticmethod
    def forward(ctx, x, index, zero_at, back_index, back_zero_at):
        ctx.save_for_backward(index, zero_at, back_index, back_zero_at)
        return _select_rows(x, index, zero_at)

    @staticmethod
    def backward(ctx, grad):
        index, zero_at, back_index, back_zero_at = ctx.saved_tensors
        return _rearrange(grad, back_index, back_zero_at, index, zero_at), None, None, None, None
