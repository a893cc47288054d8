"""PyTorch, operation by operation: a map is computed in strips that fit in a CPU's cache, or as a whole.

Windows gather tokens by tables of indices: one gather for pad, roll and partition.

Layout: B batch, H W height and width of a map, C channels in, D channels out, T tokens, P places of all windows, L
windows, N places of a window, h heads, d channels of a head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Optional, Protocol, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends import mkldnn

from ..compat import fake_mode, is_batched, onednn_linear, without_cudnn_attention
from ..windows.grid import Geometry, PaddedGrid, WindowGrid, WindowGroup
from .functions import patches
from .functions.block import BLOCKS, in_dtype, linear
from .functions.gradients import Context
from .functions.position import bounded_cache
from .protocol import (
    BlockSettings,
    BlockWeights,
    EmbeddingWeights,
    MergingWeights,
    MLPBlockWeights,
    Plan,
    Request,
    Windows,
)
from .strips import checkpointed, in_turn, recomputed
from .weight_cache import WeightCache


def eager_linear(
    x_TC: Tensor,
    weight_DC: Tensor,
    bias_D: Optional[Tensor],
    activation: Optional[Callable[[Tensor], Tensor]] = None,
    gradient_only: bool = False,
) -> Tensor:
    """`linear`, for eager PyTorch alone: in float32 on a CPU by oneDNN, whose GEMM is quicker on slim matrices."""
    if (
        onednn_linear is None
        or weight_DC.dtype != torch.float32
        or weight_DC.device.type != 'cpu'
        or not mkldnn.enabled
    ):
        return linear(x_TC, weight_DC, bias_D, activation)
    x_TC = x_TC.to(weight_DC.dtype)
    needs_gradient = x_TC.requires_grad or weight_DC.requires_grad or (bias_D is not None and bias_D.requires_grad)
    if needs_gradient and torch.is_grad_enabled():
        y_TD: Tensor = _Linear.apply(x_TC, weight_DC, bias_D, gradient_only)  # type: ignore[no-untyped-call]  # torch has no types for it
    elif isinstance(activation, nn.GELU):
        gelu_TD: Tensor = onednn_linear(x_TC, weight_DC, bias_D, 'gelu', [], activation.approximate)
        return gelu_TD
    else:
        y_TD = onednn_linear(x_TC, weight_DC, bias_D, 'none', [], '')
    return y_TD if activation is None else activation(y_TD)


class _Linear(torch.autograd.Function):
    """The gradient that oneDNN's function lacks."""

    @staticmethod
    def forward(ctx: Context, x_TC: Tensor, weight_DC: Tensor, bias_D: Optional[Tensor], gradient_only: bool) -> Tensor:
        ctx.save_for_backward(x_TC, weight_DC)
        if gradient_only:
            return x_TC.new_empty(x_TC.shape[0], weight_DC.shape[0])
        y_TD: Tensor = onednn_linear(x_TC, weight_DC, bias_D, 'none', [], '')
        return y_TD

    @staticmethod
    def backward(ctx: Context, grad_TD: Tensor) -> tuple[Optional[Tensor], ...]:
        (x_TC, weight_DC), (needs_x, needs_weight, needs_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
        grad_weight_DC = None
        if needs_weight:  # BLAS is a fifth quicker with the longer side in front
            wide = weight_DC.shape[0] >= weight_DC.shape[1]
            grad_weight_DC = grad_TD.t() @ x_TC if wide else (x_TC.t() @ grad_TD).t()
        by = linear if is_batched(grad_TD) else eager_linear  # oneDNN's function takes no batch of gradients
        grad_x_TC = by(grad_TD, weight_DC.t(), None) if needs_x else None
        return grad_x_TC, grad_weight_DC, grad_TD.sum(0) if needs_bias else None, None


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
        groups: the kinds of the windows, in their order.
    """

    tokens_T: Optional[Tensor]
    token_at_P: Optional[Tensor]
    place_of_T: Optional[Tensor]
    padding_P: Optional[Tensor]
    padded: bool
    window_area: int
    tokens_per_image: int
    groups: tuple[WindowGroup, ...]

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
            x_TC = _ToWindows.apply(x_TC, self)  # type: ignore[no-untyped-call]  # torch has no types for it
        return x_TC.view(-1, self.window_area, x_TC.shape[-1])

    def to_tokens(self, x_LNC: Tensor) -> Tensor:
        """Take tokens out of their places: (T, C). What padding holds is dropped."""
        x_PC = x_LNC.flatten(0, 1)
        if self.place_of_T is None:
            return x_PC
        x_TC: Tensor = _ToTokens.apply(x_PC, self)  # type: ignore[no-untyped-call]  # torch has no types for it
        return x_TC

    def attend(
        self, qkv_T3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Optional[Tensor] = None
    ) -> Tensor:
        """See `Windows`."""
        qkv_LN3hd = self.to_windows(qkv_T3C).unflatten(-1, (3, len(bias_hNN), -1))
        q, k, v = (x.transpose(1, 2).clone(memory_format=torch.contiguous_format) for x in qkv_LN3hd.unbind(2))
        logits_LhNN, bias_hNN = q.mul_(scale) @ k.transpose(-2, -1), bias_hNN.to(q.dtype)
        biases = [bias_hNN if m is None else bias_hNN.masked_fill(~m, -torch.inf) for _, m in self.groups]
        parts = logits_LhNN.split([group.length for group in self.groups])
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
    def cut(cls, _fake_mode: Any, geometry: Geometry, window_tokens: Optional[int]) -> 'list[TableWindows]':
        """Cut all windows of a batch of maps into pieces of about equal size; each token is in exactly one.

        Args:
            _fake_mode: see `bounded_cache`.
            window_tokens: the most places (tokens and padding) of a piece, which has at least one window; None: one
                piece with all windows, whose tokens are in the order of the maps.
        """
        grid = cls.grid_kind(geometry)
        if window_tokens is None:
            return [cls._between(grid, 0, grid.num_windows, as_the_maps=True)]
        num_pieces = -(-grid.num_windows // max(1, window_tokens // grid.window_area))
        bounds = [grid.num_windows * i // num_pieces for i in range(num_pieces + 1)]
        return [cls._between(grid, *ends) for ends in zip(bounds, bounds[1:])]

    @classmethod
    def _between(cls, grid: WindowGrid, start: int, stop: int, as_the_maps: bool = False) -> 'TableWindows':
        """Windows start..stop of a grid, over just the tokens in them; `as_the_maps`: over all, in their order."""
        token_at_P = grid.token_at_LN[start:stop].flatten()
        is_token_P = token_at_P >= 0
        tokens_T, place_of_T = token_at_P[is_token_P], is_token_P.nonzero()[:, 0]
        padded = tokens_T.shape != token_at_P.shape
        common = (padded, grid.window_area, grid.tokens_per_image, grid.groups_between(start, stop))
        if as_the_maps:
            place_of_T = torch.empty_like(place_of_T).scatter(0, tokens_T, place_of_T)
        elif not padded:
            return cls(tokens_T, None, None, None, *common)
        token_at_P = torch.full_like(token_at_P, len(tokens_T))
        token_at_P[place_of_T] = torch.arange(len(tokens_T), device=tokens_T.device)
        return cls(None if as_the_maps else tokens_T, token_at_P, place_of_T, (~is_token_P).nonzero()[:, 0], *common)


class PaddedTables(TableWindows):
    """Windows that shift by padding, as `PaddedGrid` has them."""

    grid_kind = PaddedGrid


class SdpaWindows(TableWindows):
    """The same, with attention by torch's scaled_dot_product_attention."""

    def attend(
        self, qkv_T3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Optional[Tensor] = None
    ) -> Tensor:
        """See `Windows`."""
        qkv_3LhNd = self.to_windows(qkv_T3C).unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
        bias_hNN, counts = bias_hNN.to(qkv_T3C.dtype), [group.length for group in self.groups]
        biases = [bias_hNN if m is None else bias_hNN.masked_fill(~m, -torch.inf) for _, m in self.groups]
        with without_cudnn_attention():
            parts = [
                F.scaled_dot_product_attention(q, k, v, bias_hNN[None], dropout, scale=scale)
                for bias_hNN, q, k, v in zip(biases, *(x_LhNd.split(counts) for x_LhNd in qkv_3LhNd))
            ]
        x_LhNd = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.to_tokens(x_LhNd.transpose(1, 2).flatten(2))


# Gather and scatter are each other's transpose, so backward is a gather too, and never an atomic add.


class _Tables(Protocol):
    """`TableWindows` whose tokens do not stand in place as read: no table is None."""

    token_at_P: Tensor
    place_of_T: Tensor
    padding_P: Tensor
    padded: bool

    def pad(self, x_TC: Tensor) -> Tensor:
        """See `TableWindows`."""


class _OfWindows(Context, Protocol):
    windows: _Tables


class _ToWindows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _OfWindows, x_TC: Tensor, windows: _Tables) -> Tensor:
        ctx.windows = windows
        return x_TC.index_select(0, windows.token_at_P)

    @staticmethod
    def backward(ctx: _OfWindows, grad_PC: Tensor) -> tuple[Tensor, None]:
        windows = ctx.windows
        grad_TC = grad_PC.index_select(0, windows.place_of_T)
        if windows.padded:
            of_padding_1C = grad_PC.index_select(0, windows.padding_P).sum(0, keepdim=True)
            grad_TC = torch.cat([grad_TC, of_padding_1C])
        return grad_TC, None


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _OfWindows, x_PC: Tensor, windows: _Tables) -> Tensor:
        ctx.windows = windows
        return x_PC.index_select(0, windows.place_of_T)

    @staticmethod
    def backward(ctx: _OfWindows, grad_TC: Tensor) -> tuple[Tensor, None]:
        return ctx.windows.pad(grad_TC).index_select(0, ctx.windows.token_at_P), None


class Eager:
    """Operation by operation; in strips, of which a training step stores the input alone, where the plan has them."""

    name = 'eager'

    def why_not(self, request: Request) -> Optional[str]:
        """See `Backend`."""
        if request.recorded is not None:
            return f'It looks tokens up in tables made for one size, and {request.recorded} takes one graph.'
        return None

    def embed(
        self, image_BCHW: Tensor, w: EmbeddingWeights, eps: Optional[float], plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`. In strips this is one matrix product each."""
        if plan.strip_tokens is None:
            return patches.convolve(image_BCHW, w, eps)
        image_BHWC, patch = image_BCHW.permute(0, 2, 3, 1), w.projection_weight.shape[2:]
        rows = patches.row_strips(image_BHWC.shape, (patch[0], patch[1]), plan.strip_tokens)
        return _in_rows(partial(patches.embed, eps=eps, linear=eager_linear), image_BHWC, rows, in_dtype(w, plan.dtype))

    def block(
        self,
        x_BHWC: Tensor,
        w: Union[BlockWeights, MLPBlockWeights],
        settings: BlockSettings,
        geometry: Geometry,
        plan: Plan,
        cache: WeightCache,
    ) -> Tensor:
        """See `Backend`."""
        pieces = self.tables(geometry, settings.kind).cut(fake_mode(), geometry, plan.strip_tokens)
        compute = partial(BLOCKS[settings.kind], settings=settings)
        if plan.dtype is not None:
            w = in_dtype(w, plan.dtype)
        if torch.is_grad_enabled() and (plan.strip_tokens is not None or plan.with_cp):
            if plan.strip_tokens is None:
                return checkpointed(compute, x_BHWC, pieces[0], w)
            return recomputed(compute, x_BHWC, pieces, w, has_dropout=settings.has_dropout)
        out_BHWC: Optional[Tensor] = x_BHWC if plan.overwrite else None
        for piece in pieces:
            out_BHWC = piece.write(compute(piece.read(x_BHWC), piece, w), x_BHWC, out_BHWC)
        assert out_BHWC is not None
        return out_BHWC

    def merge(
        self, x_BHWC: Tensor, w: MergingWeights, eps: Optional[float], post_norm: bool, plan: Plan, cache: WeightCache
    ) -> Tensor:
        """See `Backend`."""
        w = patches.neighbours_in_order(in_dtype(w, plan.dtype), post_norm)
        if plan.strip_tokens is None:
            return patches.merge(x_BHWC, w, eps, post_norm)
        B, H, W, C = x_BHWC.shape
        if H % 2 == 0:  # then all images can be stacked into one tall image
            x_BHWC = x_BHWC.reshape(1, B * H, W, C)
        rows = patches.row_strips(x_BHWC.shape, (2, 2), plan.strip_tokens)
        compute = partial(patches.merge, eps=eps, post_norm=post_norm, linear=eager_linear)
        return _in_rows(compute, x_BHWC, rows, w).view(B, (H + 1) // 2, (W + 1) // 2, -1)

    def output_norm(
        self, x_BHWC: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float, plan: Plan
    ) -> Tensor:
        """See `Backend`."""
        trained = any(t is not None and t.requires_grad for t in (x_BHWC, weight, bias)) and torch.is_grad_enabled()
        if plan.strip_tokens is None or trained:
            return patches.output_norm(x_BHWC, weight, bias, eps)
        return patches.output_norm_in_strips(x_BHWC, weight, bias, eps)

    def windows(self, geometry: Geometry, kind: str) -> Windows:
        """See `Backend`."""
        return self.tables(geometry, kind).cut(fake_mode(), geometry, None)[0]

    def tables(self, geometry: Geometry, kind: str) -> type[TableWindows]:
        """The windows of a kind of block. On a CPU two batched products are quicker than torch's fused attention."""
        if kind == 'mlp':
            return PaddedTables
        return TableWindows if geometry.device.type == 'cpu' else SdpaWindows


def _in_rows(
    compute: Callable[..., Tensor], x_BHWC: Tensor, rows: Sequence[patches.Rows], w: tuple[Any, ...]
) -> Tensor:
    """Compute a patch layer strip by strip."""

    def compute_rows(x: Tensor, _rows: patches.Rows, w: tuple[Any, ...], gradient_only: bool = False) -> Tensor:
        return compute(x, w)

    return (recomputed if torch.is_grad_enabled() else in_turn)(compute_rows, x_BHWC, rows, w)
