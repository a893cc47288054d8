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
from itertools import groupby, product
from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]
CACHED_GRIDS = 64  # a Swin at one input size uses 8: two shifts in each of four stages


class Run(NamedTuple):
    """`count` consecutive windows of one kind; `mask_NN` is True where a query (row) may attend to a key."""

    count: int
    mask_NN: Optional[Tensor]  # None: everywhere


class Strip(NamedTuple):
    """Some consecutive windows of a grid, and the tokens in them."""

    tokens_T: Optional[Tensor]  # the rows of the map in these windows; None: every row, in the map's order
    token_at_P: Optional[Tensor]  # for each place of each window its token, T for padding; None: they stand in place
    place_of_T: Optional[Tensor]  # for each token its place: the inverse of token_at_P
    padding_P: Optional[Tensor]  # the places of padding
    padded: bool  # whether there may be padding
    window_area: int  # N
    tokens_per_image: int
    runs: tuple[Run, ...]

    def with_padding_token(self, x_TC: Tensor) -> Tensor:
        """The tokens, and behind them the zero token that `to_windows` puts where a window reaches over the map."""
        return F.pad(x_TC, (0, 0, 0, 1)) if self.padded else x_TC

    def to_windows(self, x_TC: Tensor) -> Tensor:
        """Put tokens in their places: (L, N, C), from T tokens and, behind them if `padded`, what padding holds."""
        if self.token_at_P is None:
            return x_TC.view(-1, self.window_area, x_TC.shape[-1])
        return (_ToWindows.apply if _by_hand(x_TC) else _to_windows)(x_TC, self)

    def to_tokens(self, x_LNC: Tensor) -> Tensor:
        """Take tokens out of their places: (T, C). What padding holds is dropped."""
        if self.token_at_P is None:
            return x_LNC.flatten(0, 1)
        return (_ToTokens.apply if _by_hand(x_LNC) else _to_tokens)(x_LNC, self)

    def to_windows_backward(self, grad_LNC: Tensor) -> Tensor:
        """The gradient of `to_windows`' argument: of the T tokens and, if `padded`, of what padding holds."""
        grad_TC = self.to_tokens(grad_LNC)
        if self.padded:
            of_padding_1C = grad_LNC.flatten(0, 1).index_select(0, self.padding_P).sum(0, keepdim=True)
            grad_TC = torch.cat([grad_TC, of_padding_1C])
        return grad_TC

    def to_tokens_backward(self, grad_TC: Tensor) -> Tensor:
        """The gradient of `to_tokens`' argument: zero where padding is."""
        return self.to_windows(self.with_padding_token(grad_TC))

    def per_image(self, x_TC: Tensor) -> Tensor:
        """The tokens of each image by themselves, if these are all tokens: (B, H*W, C)."""
        return x_TC.view(-1, self.tokens_per_image, x_TC.shape[-1])

    def per_token(self, values_B: Tensor) -> Tensor:
        """One value an image, at each of its tokens: (T, 1)."""
        if self.tokens_T is None:
            return values_B.repeat_interleave(self.tokens_per_image)[:, None]
        return values_B.index_select(0, self.tokens_T // self.tokens_per_image)[:, None]


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
        runs = []
        for (row_cut, column_cut), of_kind in groupby(pieces, key=lambda piece: piece[0]):
            mask_NN = _pair_mask(same_row[row_cut], same_column[column_cut], window_size)
            runs.append(Run(sum(token_LN.shape[0] for _, _, token_LN in of_kind), mask_NN))
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
    """A bounded cache for index tables; it steps aside under torch.compile and export, which trace what they do."""

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
    padding_P = (token_at_P < 0).nonzero()[:, 0]
    padded = token_at_P.shape[0] > grid.num_tokens
    token_at_P = torch.where(token_at_P < 0, grid.num_tokens, token_at_P)
    places_P = torch.arange(token_at_P.shape[0], device=token_at_P.device)
    place_of_T = places_P.new_empty(grid.num_tokens + 1).scatter(0, token_at_P, places_P)[:-1]
    return Strip(None, token_at_P, place_of_T, padding_P, padded, grid.window_area, grid.tokens_per_image, grid.runs)


@bounded_cache
def _strips(grid: WindowGrid, windows_per_strip: int) -> list[Strip]:
    num_strips = -(-grid.num_windows // windows_per_strip)
    bounds = [grid.num_windows * i // num_strips for i in range(num_strips + 1)]
    return [_cut(grid, *ends) for ends in zip(bounds, bounds[1:])]


def _cut(grid: WindowGrid, start: int, stop: int) -> Strip:
    """Windows start..stop of a grid, over just the tokens in them."""
    token_at_P = grid.token_at_LN[start:stop].flatten()
    geometry = grid.window_area, grid.tokens_per_image, _cut_runs(grid.runs, start, stop)
    is_token_P = token_at_P >= 0
    tokens_T = token_at_P[is_token_P]
    if tokens_T.shape == token_at_P.shape:
        return Strip(tokens_T, None, None, None, False, *geometry)
    local_at_P = torch.where(is_token_P, is_token_P.cumsum(0) - 1, tokens_T.shape[0])
    place_of_T, padding_P = is_token_P.nonzero()[:, 0], (~is_token_P).nonzero()[:, 0]
    return Strip(tokens_T, local_at_P, place_of_T, padding_P, True, *geometry)


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
    masks = [None]
    for i in range(num_plain, num_windows):
        pieces.append((len(masks), bool(padded > length), slice(i, i + 1)))
        masks.append(region_nW[i][:, None] == region_nW[i])
    return coordinates_nW, pieces, masks


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


def _by_hand(x: Tensor) -> bool:
    """Whether to take the autograd functions below."""
    return torch.is_grad_enabled() and x.requires_grad


def _to_windows(x_TC: Tensor, strip: Strip) -> Tensor:
    return x_TC.index_select(0, strip.token_at_P).view(-1, strip.window_area, x_TC.shape[-1])


def _to_tokens(x_LNC: Tensor, strip: Strip) -> Tensor:
    return x_LNC.flatten(0, 1).index_select(0, strip.place_of_T)


# Gather and scatter are each other's transpose, so backward is a gather too, and never an atomic add.


class _ToWindows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TC, strip):
        ctx.strip = strip
        return _to_windows(x_TC, strip)

    @staticmethod
    def backward(ctx, grad_LNC):
        return ctx.strip.to_windows_backward(grad_LNC), None


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_LNC, strip):
        ctx.strip = strip
        return _to_tokens(x_LNC, strip)

    @staticmethod
    def backward(ctx, grad_TC):
        return ctx.strip.to_tokens_backward(grad_TC), None
