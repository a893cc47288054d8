"""The windows of a map, and attention inside them: what every kind of windows can do, and the kinds for eager PyTorch.

`TableWindows` and `SdpaWindows`, here, gather tokens by tables of indices, one gather for pad, roll and partition, and
can be cut into strips. `RolledWindows` (`backends/graph.py`) pads, rolls and partitions whole maps in one graph, at
sizes that may be symbols; `ExportedWindows` (`backends/exported.py`) gathers in such a graph. `TritonWindows`
(`backends/triton/backend.py`) hands whole maps to a kernel that finds tokens by arithmetic.

Layout: B batch, H W height and width of a map, C channels, T tokens, P places of all windows, L windows, N places of
a window, h heads, d channels of a head, R offsets between places of a window.
"""

from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Callable, ClassVar, Optional, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compat import fake_mode, without_cudnn_attention
from ..windows.grid import Run, Size, WindowGrid
from .linear import eager_linear

CACHED_GRIDS = 64  # a Swin at one input size uses 8: two shifts in each of four stages


def bounded_cache(build: Callable) -> Callable:
    """A bounded cache for index tables. Under torch.compile and export it calls the function directly.

    Fake tensors, which have no values, are kept for their own fake mode alone.
    """

    @lru_cache(maxsize=CACHED_GRIDS)
    def cached(_fake_mode, *args):
        with torch.inference_mode(False):  # an inference tensor could not be saved for a later backward
            return build(*args)

    @wraps(build)
    def call(*args):
        return build(*args) if torch.compiler.is_compiling() else cached(fake_mode(), *args)

    call.cache_info, call.cache_clear = cached.cache_info, cached.cache_clear  # type: ignore[attr-defined]
    return call


class Windows(Protocol):
    """Some windows of a batch of maps.

    `tokens` below are (T, C), or for `RolledWindows` whole maps (B, H, W, C).
    """

    def read(self, x_BHWC: Tensor) -> Tensor:
        """The tokens in these windows."""

    def write(self, y: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """Put the computed tokens in their places in `out_BHWC`; None: in a new map of the same shape."""

    def linear(
        self,
        x: Tensor,
        weight_DC: Tensor,
        bias_D: Optional[Tensor],
        activation: Optional[Callable[[Tensor], Tensor]] = None,
        gradient_only: bool = False,
    ) -> Tensor:
        """A linear layer over tokens: `backends.linear.linear`, or a faster equivalent."""

    def pad(self, x: Tensor, by_bias: bool = False) -> Tensor:
        """The tokens, with zeros for places outside the map; `by_bias`: or not, as `attend` gets the bias of qkv."""

    def attend(self, qkv: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C=None) -> Tensor:
        """Softmax(scale q k^T + bias) v inside each window (Liu et al. 2021, equation 4).

        Tokens that are neighbours only because of the cyclic shift do not attend to each other.

        Args:
            qkv: query, key and value of each padded token, concatenated; in each of the three, its heads.
            bias_hNN: the relative position bias.
            dropout: probability with which an attention weight is dropped.
            qkv_bias_3C: of tokens padded `by_bias`: what qkv has for zeros; None: zeros.

        Returns:
            The tokens, without padding.
        """

    def per_token(self, values_B: Tensor) -> Tensor:
        """One value for each image, in a shape that broadcasts over its tokens."""

    def per_image(self, x: Tensor) -> Tensor:
        """The tokens with the image as first dimension; only where these are all windows of the maps."""


@dataclass(frozen=True, eq=False)
class TableWindows:
    """Windows whose tokens are found by tables of indices; attention by two batched products.

    Args:
        tokens_T: the tokens of the maps that are in these windows, as they are read; None: all, in the maps' order.
        token_at_P: the token at each place of each window, T for padding; None: tokens stand in place as read.
        place_of_T: the place of each token: the inverse of `token_at_P`.
        padding_P: the places of padding.
        padded: whether there may be padding.
        window_area: N.
        tokens_per_image: H * W.
        runs: the kinds of the windows, in their order.
    """

    tokens_T: Optional[Tensor]
    token_at_P: Optional[Tensor]
    place_of_T: Optional[Tensor]
    padding_P: Optional[Tensor]
    padded: bool
    window_area: int
    tokens_per_image: int
    runs: tuple[Run, ...]

    grid_kind: ClassVar[type[WindowGrid]] = WindowGrid

    def read(self, x_BHWC: Tensor) -> Tensor:
        """(T, C)."""
        x_TC = x_BHWC.flatten(0, 2)
        return x_TC if self.tokens_T is None else x_TC.index_select(0, self.tokens_T)

    def write(self, y_TC: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """See `Windows`."""
        if self.tokens_T is None:
            return y_TC.view(x_BHWC.shape)
        if out_BHWC is None or out_BHWC.dtype != y_TC.dtype:  # known only now: under autocast it need not be x's
            out_BHWC = y_TC.new_empty(x_BHWC.shape)
        out_BHWC.view(-1, y_TC.shape[-1]).index_copy_(0, self.tokens_T, y_TC)
        return out_BHWC

    linear = staticmethod(eager_linear)
    # A block's output is where its input was, and so are their gradients.
    read_gradient, write_gradient = read, write

    def pad(self, x_TC: Tensor, by_bias: bool = False) -> Tensor:
        """The tokens, and behind them one zero token, which `to_windows` puts at every place of padding."""
        return F.pad(x_TC, (0, 0, 0, 1)) if self.padded else x_TC

    def to_windows(self, x_TC: Tensor) -> Tensor:
        """Put padded tokens in their places: (L, N, C)."""
        if self.token_at_P is not None:
            x_TC = _ToWindows.apply(x_TC, self)
        return x_TC.view(-1, self.window_area, x_TC.shape[-1])

    def to_tokens(self, x_LNC: Tensor) -> Tensor:
        """Take tokens out of their places: (T, C). What padding holds is dropped."""
        x_PC = x_LNC.flatten(0, 1)
        return x_PC if self.place_of_T is None else _ToTokens.apply(x_PC, self)

    def attend(self, qkv_T3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C=None) -> Tensor:
        """See `Windows`."""
        qkv_LN3hd = self.to_windows(qkv_T3C).unflatten(-1, (3, len(bias_hNN), -1))
        q, k, v = (x.transpose(1, 2).clone(memory_format=torch.contiguous_format) for x in qkv_LN3hd.unbind(2))
        logits_LhNN, bias_hNN = q.mul_(scale) @ k.transpose(-2, -1), bias_hNN.to(q.dtype)
        biases = [bias_hNN if m is None else bias_hNN.masked_fill(~m, -torch.inf) for _, m in self.runs]
        parts = logits_LhNN.split([run.length for run in self.runs])
        if len(parts) == 1:
            logits_LhNN += biases[0]
        elif logits_LhNN.requires_grad:  # no part of a tensor can be overwritten then
            logits_LhNN = torch.cat([part + bias for part, bias in zip(parts, biases)])
        else:
            for part, bias in zip(parts, biases):
                part += bias
        # Autocast would make half precision float32 here, unless the dtype is given; the sum is in float32 anyway.
        weights_LhNN = F.dropout(torch.softmax(logits_LhNN, dim=-1, dtype=logits_LhNN.dtype), dropout)
        return self.to_tokens((weights_LhNN @ v).transpose(1, 2).flatten(2))

    def per_token(self, values_B: Tensor) -> Tensor:
        """(T, 1)."""
        if self.tokens_T is None:
            return values_B.repeat_interleave(self.tokens_per_image)[:, None]
        return values_B.index_select(0, self.tokens_T // self.tokens_per_image)[:, None]

    def per_image(self, x_TC: Tensor) -> Tensor:
        """(B, H*W, C)."""
        return x_TC.view(-1, self.tokens_per_image, x_TC.shape[-1])

    @classmethod
    @bounded_cache
    def cut(cls, window_tokens: Optional[int], *geometry) -> 'list[TableWindows]':
        """Cut all windows of a batch of maps into pieces of about equal size; each token is in exactly one.

        Args:
            window_tokens: the most places (tokens and padding) of a piece, which has at least one window; None: one
                piece with all windows, whose tokens are in the order of the maps.
            geometry: the arguments of `WindowGrid`.
        """
        grid = cls.grid_kind(*geometry)
        if window_tokens is None:
            return [cls._between(grid, 0, grid.num_windows, in_order=True)]
        num_pieces = -(-grid.num_windows // max(1, window_tokens // grid.window_area))
        bounds = [grid.num_windows * i // num_pieces for i in range(num_pieces + 1)]
        return [cls._between(grid, *ends) for ends in zip(bounds, bounds[1:])]

    @classmethod
    def _between(cls, grid: WindowGrid, start: int, stop: int, in_order: bool = False) -> 'TableWindows':
        """Windows start..stop of a grid, over just the tokens in them; `in_order`: over all, as the maps have them."""
        token_at_P = grid.token_at_LN[start:stop].flatten()
        is_token_P = token_at_P >= 0
        tokens_T, place_of_T = token_at_P[is_token_P], is_token_P.nonzero()[:, 0]
        padded = tokens_T.shape != token_at_P.shape
        common = (padded, grid.window_area, grid.tokens_per_image, grid.runs_between(start, stop))
        if in_order:
            place_of_T = torch.empty_like(place_of_T).scatter(0, tokens_T, place_of_T)
        elif not padded:
            return cls(tokens_T, None, None, None, *common)
        token_at_P = torch.full_like(token_at_P, len(tokens_T))
        token_at_P[place_of_T] = torch.arange(len(tokens_T), device=tokens_T.device)
        return cls(None if in_order else tokens_T, token_at_P, place_of_T, (~is_token_P).nonzero()[:, 0], *common)


class SdpaWindows(TableWindows):
    """The same, with attention by torch's scaled_dot_product_attention."""

    def attend(self, qkv_T3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C=None) -> Tensor:
        """See `Windows`."""
        qkv_3LhNd = self.to_windows(qkv_T3C).unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
        bias_hNN, counts = bias_hNN.to(qkv_T3C.dtype), [run.length for run in self.runs]
        biases = [bias_hNN if m is None else bias_hNN.masked_fill(~m, -torch.inf) for _, m in self.runs]
        with without_cudnn_attention():
            parts = [
                F.scaled_dot_product_attention(q, k, v, bias_hNN[None], dropout, scale=scale)
                for bias_hNN, q, k, v in zip(biases, *(x_LhNd.split(counts) for x_LhNd in qkv_3LhNd))
            ]
        x_LhNd = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.to_tokens(x_LhNd.transpose(1, 2).flatten(2))


def fit_window(height: int, width: int, window_size: Size, shift: Size, small_map: str) -> tuple[Size, Size]:
    """The window and shift for a map, which may be smaller than the window.

    With `small_map='pad'` they stay (mmdet and mmseg). With 'shrink', a map no larger than the window on some
    side gets windows of its smaller side and no shift (microsoft/Swin-Transformer, the classifiers).
    """
    if small_map == 'pad' or (height > window_size[0] and width > window_size[1]):
        return window_size, shift
    side = min(height, width)
    return (min(side, window_size[0]), min(side, window_size[1])), (0, 0)


@bounded_cache
def relative_position_index(window_size: Size, table_window: Size, device: torch.device) -> Tensor:
    """For each pair of places (query, key) of a window its row in the bias table: (N*N,).

    The table of `table_window` holds every offset from (1 - Wh, 1 - Ww) to (Wh - 1, Ww - 1); a smaller
    `window_size` uses the table's centre.
    """
    table_height, table_width = table_window
    y = torch.arange(window_size[0], device=device)
    x = torch.arange(window_size[1], device=device)
    dy = y[:, None] - y + table_height - 1
    dx = x[:, None] - x + table_width - 1
    # query row, query column, key row, key column
    return (dy[:, None, :, None] * (2 * table_width - 1) + dx[None, :, None, :]).flatten()


def relative_position_bias(table_Rh: Tensor, window_size: Size, table_window: Optional[Size] = None) -> Tensor:
    """The bias (h, N, N) of a window, from a table ((2Wh-1)*(2Ww-1), h) made for windows of `table_window`."""
    (Wh, Ww), (table_height, table_width) = window_size, table_window or window_size
    has_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()  # which is the same with gradients and without
    if has_graph or not (torch.is_grad_enabled() and table_Rh.requires_grad):
        index = relative_position_index(window_size, (table_height, table_width), table_Rh.device)
        return table_Rh.t().index_select(1, index).view(-1, Wh * Ww, Wh * Ww)
    # The same as views, for the biases of a query are a window of the table, turned round: backward sums these windows
    # in order, where that of the lookup adds atomically on CUDA.
    table_hYX = table_Rh.t().unflatten(1, (2 * table_height - 1, 2 * table_width - 1))
    centre_hYX = table_hYX.narrow(1, table_height - Wh, 2 * Wh - 1).narrow(2, table_width - Ww, 2 * Ww - 1)
    return centre_hYX.unfold(1, Wh, 1).unfold(2, Ww, 1).flip(3, 4).reshape(-1, Wh * Ww, Wh * Ww)


# Gather and scatter are each other's transpose, so backward is a gather too, and never an atomic add.


class _ToWindows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TC, windows):
        ctx.windows = windows
        return x_TC.index_select(0, windows.token_at_P)

    @staticmethod
    def backward(ctx, grad_PC):
        windows = ctx.windows
        grad_TC = grad_PC.index_select(0, windows.place_of_T)
        if windows.padded:
            of_padding_1C = grad_PC.index_select(0, windows.padding_P).sum(0, keepdim=True)
            grad_TC = torch.cat([grad_TC, of_padding_1C])
        return grad_TC, None


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_PC, windows):
        ctx.windows = windows
        return x_PC.index_select(0, windows.place_of_T)

    @staticmethod
    def backward(ctx, grad_TC):
        return ctx.windows.pad(grad_TC).index_select(0, ctx.windows.token_at_P), None
