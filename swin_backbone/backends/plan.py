"""How one forward is computed: with which kind of windows, how much of a map at a time, what is stored for backward.

Windows are independent, and so are rows of patches: each piece of a map can be computed by itself. On a CPU a map is
run in strips that stay in cache. In training forward keeps the input alone, and backward recomputes each strip.

Layout: B batch, H W height and width of a map, C channels.
"""

from contextlib import contextmanager, nullcontext
from typing import Any, Callable, NamedTuple, Optional, Protocol, TypeVar, Union

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from ..compat import is_exporting, is_transformed
from ..windows.grid import Size
from .eager import SdpaWindows, TableWindows, Windows, fit_window
from .exported import ExportedWindows
from .graph import RolledWindows
from .linear import autocast_dtype
from .native.backend import takes_stage
from .triton.backend import TritonWindows, fusions
from .triton.trial import takes_kernel

# Found by tools/benchmark.py --strip-tokens, with 1 MiB of L2 cache a core. For each thread: the elements of a strip
# of the map, of which four times as many are the widest tensor, the hidden map of the MLP; and the tokens below which
# GEMMs, above all those whose sum runs over tokens, are too small to run at full speed.
AUTO_STRIP_ELEMENTS = 2048 * 96
AUTO_STRIP_MIN_TOKENS = 1024

StripTokens = Union[int, str, None]
Weight = TypeVar('Weight', Tensor, Optional[Tensor])


class Piece(Protocol):
    """A part of a batch of maps that is computed by itself: some windows, or some rows."""

    def read(self, x_BHWC: Tensor) -> Tensor:
        """The part, from the whole input."""

    def write(self, y: Tensor, x_BHWC: Tensor, out_BHWC: Optional[Tensor]) -> Tensor:
        """What became of the part, put in its place in the whole output, which is made where there is None yet."""

    def read_gradient(self, grad_BHWC: Tensor) -> Tensor:
        """The gradient of what became of the part, from that of the whole output."""

    def write_gradient(self, grad: Tensor, x_BHWC: Tensor, grad_x_BHWC: Optional[Tensor]) -> Tensor:
        """The gradient of the part, put in its place in that of the whole input."""


class WindowCut(NamedTuple):
    """How a block cuts maps into windows."""

    window_size: Size
    shift: Size  # (rows, columns) of the cyclic shift; (0, 0) for none
    small_map: str  # 'pad' or 'shrink', see `backends.eager.fit_window`
    mask_padding: bool  # keep tokens from attending to padding


class Plan(NamedTuple):
    """How a stage is computed in one forward."""

    windows_kind: Any = TableWindows  # or RolledWindows, ExportedWindows or TritonWindows
    strip_tokens: Optional[int] = None  # how many tokens are computed at a time; None: whole maps
    with_cp: bool = False  # recompute blocks in backward, where they are not run in strips, which always do
    overwrite: bool = False  # whether a block may put its output where its input is
    dtype: Optional[torch.dtype] = None  # of linear layers, under automatic mixed precision
    compiled: Optional[torch.dtype] = None  # that compiled operators compute in; None: they do not compute this stage
    fused: tuple[str, ...] = ()  # of `backends.triton.backend.FUSIONS`
    as_built: bool = False  # whether each layer of the backbone is known to be the one it was built with

    def windows(self, x_BHWC: Tensor, cut: WindowCut) -> tuple[list[Windows], Size]:
        """The windows of a batch of maps, in pieces to be computed one after the other, and their size."""
        B, H, W, _ = x_BHWC.shape
        if torch.jit.is_tracing():  # which sees sizes as tensors, and records numbers
            B, H, W = int(B), int(H), int(W)
        window_size, shift = fit_window(H, W, cut.window_size, cut.shift, cut.small_map)
        geometry = B, H, W, window_size, shift, cut.mask_padding, x_BHWC.device
        return self.windows_kind.cut(self.strip_tokens, *geometry), window_size

    def cast(self, weight: Weight) -> Weight:
        """A weight of a linear layer in the dtype it is used in, so that it is cast once and not for every strip."""
        return weight if weight is None or self.dtype is None else weight.to(self.dtype)


class Planner(NamedTuple):
    """The arguments of a backbone that decide how a stage is computed."""

    strip_tokens: StripTokens
    attention_backend: str
    with_cp: bool
    channels: int
    head_dim: int
    window_size: Size
    attn_drop_rate: float

    def plan(self, x: Tensor, training: bool) -> Plan:
        """The plan for an input of this device, dtype and mode.

        Eager PyTorch on a CPU runs strips, and whole maps elsewhere. torch.compile, export, tracing, `torch.func` and
        meta tensors, which have no values from which index tables could be made, want whole maps as one graph.
        """
        device, dtype = x.device, autocast_dtype(x.device.type)
        dropout = self.attn_drop_rate if training else 0.0
        how = self.attention_backend, device, dtype or x.dtype, self.window_size, self.head_dim, dropout
        strip_tokens: Optional[int] = None
        compiled: Optional[torch.dtype] = None
        if takes_kernel(*how, in_strips=isinstance(self.strip_tokens, int)):
            kind: Any = TritonWindows
        elif is_exporting():
            kind = ExportedWindows
        elif is_one_graph(x):
            kind = RolledWindows
        else:
            kind = SdpaWindows if self.attention_backend == 'sdpa' or device.type != 'cpu' else TableWindows
            if isinstance(self.strip_tokens, int):
                strip_tokens = self.strip_tokens
            elif self.strip_tokens == 'auto' and device.type == 'cpu':
                of_thread = max(AUTO_STRIP_MIN_TOKENS, AUTO_STRIP_ELEMENTS // self.channels)
                strip_tokens = of_thread * torch.get_num_threads()
            chosen = isinstance(self.strip_tokens, int) or self.attention_backend != 'auto' or device.type != 'cpu'
            if not chosen and takes_stage(dtype or x.dtype, self.window_size, self.head_dim):
                compiled = dtype or x.dtype
        fused = fusions() if kind is TritonWindows else ()
        return Plan(kind, strip_tokens, self.with_cp, dtype=dtype, compiled=compiled, fused=fused)


def run(
    compute: Callable[..., Tensor],
    x_BHWC: Tensor,
    pieces: list,
    weights: tuple,
    plan: Plan,
    draws: bool = False,
    out_BHWC: Optional[Tensor] = None,
) -> Tensor:
    """Compute the pieces of a map one after the other, and put together what becomes of them.

    Args:
        compute: of what a `Piece` reads, the piece, and the weights; and with gradient_only=True in backward, where
            nobody reads the value.
        weights: a NamedTuple of tensors and None.
        draws: whether `compute` draws random numbers, which backward then draws again.
        out_BHWC: where the output goes; it may be the input, where no gradient is wanted.
    """
    if torch.is_grad_enabled():
        if plan.strip_tokens is not None:
            return _Recomputed.apply(compute, pieces, plan, draws, type(weights), x_BHWC, *weights)
        if plan.with_cp:
            plan = plan._replace(with_cp=False)
            return checkpoint(run, compute, x_BHWC, pieces, weights, plan, use_reentrant=False)
    for piece in pieces:
        out_BHWC = piece.write(compute(piece.read(x_BHWC), piece, weights), x_BHWC, out_BHWC)
    assert out_BHWC is not None  # there is a piece at least
    return out_BHWC


def is_one_graph(x: Tensor) -> bool:
    """Whether what is done to `x` is recorded or transformed, and not just computed."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or x.device.type == 'meta' or is_transformed()


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, compute, pieces, plan, draws, weights_type, x_BHWC, *weights):
        ctx.save_for_backward(x_BHWC, *weights)
        ctx.compute, ctx.pieces, ctx.weights_type = compute, pieces, weights_type
        ctx.same_mode = _remember_autocast(x_BHWC.device.type)
        ctx.same_draws = _remember_draws(x_BHWC) if draws else nullcontext
        return run(compute, x_BHWC, pieces, weights_type(*weights), plan)

    @staticmethod
    def backward(ctx, grad_BHWC):
        if torch.is_grad_enabled():
            raise RuntimeError(
                'a block that runs in strips has no second derivative: for create_graph=True build the backbone '
                'with strip_tokens=None and with_cp=False'
            )
        x_BHWC, *weights = ctx.saved_tensors
        grad_BHWC = grad_BHWC.contiguous()
        x_needed, *weights_needed = ctx.needs_input_grad[5:]
        weights = [w if w is None else w.detach().requires_grad_(n) for w, n in zip(weights, weights_needed)]
        wanted = [w for w, needed in zip(weights, weights_needed) if needed]
        grad_x_BHWC: Optional[Tensor] = None
        sums: list[Optional[Tensor]] = [None] * len(wanted)
        with ctx.same_draws(), ctx.same_mode():
            for piece in ctx.pieces:
                x = piece.read(x_BHWC).detach().requires_grad_(x_needed)
                with torch.enable_grad():
                    y = ctx.compute(x, piece, ctx.weights_type(*weights), gradient_only=True)
                inputs = [x, *wanted] if x_needed else wanted
                grads = list(torch.autograd.grad(y, inputs, piece.read_gradient(grad_BHWC)))
                if x_needed:
                    grad_x_BHWC = piece.write_gradient(grads.pop(0), x_BHWC, grad_x_BHWC)
                sums = [_add(total, grad) for total, grad in zip(sums, grads)]
        found = iter(sums)
        return None, None, None, None, None, grad_x_BHWC, *(next(found) if n else None for n in weights_needed)


def _add(total: Optional[Tensor], gradient: Tensor) -> Tensor:
    """Sums of many strips want more bits than half precision has."""
    if total is None:
        return gradient.float() if gradient.dtype.itemsize < 4 else gradient
    return total.add_(gradient)


def _remember_autocast(device_type: str) -> Callable:
    """The autocast mode of now, to enter again: what torch.amp.custom_fwd and custom_bwd do, for any device."""
    enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    return lambda: torch.autocast(device_type, enabled=enabled, dtype=dtype)


def _remember_draws(x: Tensor) -> Callable:
    """The state of the random number generators of now, to enter again and leave as if nothing had been drawn."""
    state, (devices, device_states) = torch.get_rng_state(), get_device_states(x)

    @contextmanager
    def same_draws():
        kind = x.device.type
        with torch.random.fork_rng(devices, device_type=kind if devices else 'cuda'):
            torch.set_rng_state(state)
            set_device_states(devices, device_states, device_type=kind if devices else None)
            yield

    return same_draws
