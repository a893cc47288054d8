"""Maps computed piece by piece, and what is stored of them for backward.

Windows are independent, and so are rows of patches: each piece of a map can be computed by itself. On a CPU a map is
run in strips that stay in cache. In training forward keeps the input alone, and backward recomputes each strip.

Layout: B batch, H W height and width of a map, C channels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Optional, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from .functions.gradients import Context, gradients_by_autograd, needs_autograd
from .protocol import Request, Windows

# Found by `benchmarks.backbones --strip-tokens`, with 1 MiB of L2 cache a core. For each thread: the elements of a
# strip of the map, of which four times as many are the widest tensor, the hidden map of the MLP; and the tokens below
# which GEMMs, above all those whose sum runs over tokens, are too small to run at full speed.
AUTO_STRIP_ELEMENTS = 2048 * 96
AUTO_STRIP_MIN_TOKENS = 1024


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


def strip_tokens_of(request: Request) -> Optional[int]:
    """How many tokens of a stage are computed at a time; None: whole maps."""
    if isinstance(request.strip_tokens, int):
        return request.strip_tokens
    if request.strip_tokens is None or request.device.type != 'cpu' or request.recorded is not None:
        return None
    return max(AUTO_STRIP_MIN_TOKENS, AUTO_STRIP_ELEMENTS // request.channels) * torch.get_num_threads()


def in_turn(compute: Callable[..., Tensor], x_BHWC: Tensor, pieces: Sequence[Any], weights: tuple[Any, ...]) -> Tensor:
    """Compute the pieces of a map one after the other, and put together what becomes of them.

    Args:
        compute: of what a `Piece` reads, the piece, and the weights; and with gradient_only=True in backward, where
            nobody reads the value.
        pieces: one at least.
        weights: a NamedTuple of tensors and None.
    """
    out_BHWC: Optional[Tensor] = None
    for piece in pieces:
        out_BHWC = piece.write(compute(piece.read(x_BHWC), piece, weights), x_BHWC, out_BHWC)
    assert out_BHWC is not None
    return out_BHWC


def recomputed(
    compute: Callable[..., Tensor],
    x_BHWC: Tensor,
    pieces: Sequence[Piece],
    weights: tuple[Any, ...],
    has_dropout: bool = False,
) -> Tensor:
    """`in_turn`, whose backward computes each piece again, and stores nothing but the input.

    Args:
        has_dropout: whether `compute` draws random numbers, which backward then draws again.
    """
    inputs = (compute, pieces, has_dropout, type(weights), x_BHWC, *weights)
    y_BHWC: Tensor = _Recomputed.apply(*inputs)  # type: ignore[no-untyped-call]  # torch has no types for it
    return y_BHWC


def checkpointed(compute: Callable[..., Tensor], x_BHWC: Tensor, windows: Windows, weights: tuple[Any, ...]) -> Tensor:
    """Compute whole maps, and again in backward, which torch sees operation by operation."""
    y_BHWC: Tensor = checkpoint(in_turn, compute, x_BHWC, [windows], weights, use_reentrant=False)
    return y_BHWC


class _Saved(Context, Protocol):
    compute: Callable[..., Tensor]
    pieces: Sequence[Piece]
    weights_type: Callable[..., tuple[Any, ...]]
    same_autocast: Callable[[], AbstractContextManager[object]]
    same_random_state: Callable[[], AbstractContextManager[object]]


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Saved,
        compute: Callable[..., Tensor],
        pieces: Sequence[Piece],
        has_dropout: bool,
        weights_type: Callable[..., tuple[Any, ...]],
        x_BHWC: Tensor,
        *weights: Optional[Tensor],
    ) -> Tensor:
        ctx.save_for_backward(x_BHWC, *weights)
        ctx.compute, ctx.pieces, ctx.weights_type = compute, pieces, weights_type
        ctx.same_autocast = _autocast_of_now(x_BHWC.device.type)
        ctx.same_random_state = _random_state_of_now(x_BHWC) if has_dropout else nullcontext
        return in_turn(compute, x_BHWC, pieces, weights_type(*weights))

    @staticmethod
    def backward(ctx: _Saved, grad_BHWC: Tensor) -> tuple[Optional[Tensor], ...]:
        needed = ctx.needs_input_grad[4:]
        if needs_autograd(grad_BHWC):  # of all strips, then

            def whole(x_BHWC: Tensor, *weights: Optional[Tensor]) -> Tensor:
                return in_turn(ctx.compute, x_BHWC, ctx.pieces, ctx.weights_type(*weights))

            with ctx.same_random_state(), ctx.same_autocast():
                return None, None, None, None, *gradients_by_autograd(whole, ctx.saved_tensors, needed, grad_BHWC)
        (x_BHWC, *weights), (x_needed, *weights_needed) = ctx.saved_tensors, needed
        grad_BHWC = grad_BHWC.contiguous()
        weights = [w if w is None else w.detach().requires_grad_(n) for w, n in zip(weights, weights_needed)]
        wanted = [w for w, needed in zip(weights, weights_needed) if needed]
        grad_x_BHWC: Optional[Tensor] = None
        sums: list[Optional[Tensor]] = [None] * len(wanted)
        with ctx.same_random_state(), ctx.same_autocast():
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
        return None, None, None, None, grad_x_BHWC, *(next(found) if n else None for n in weights_needed)


def _add(total: Optional[Tensor], gradient: Tensor) -> Tensor:
    """Sums of many strips want more bits than half precision has."""
    if total is None:
        return gradient.float() if gradient.dtype.itemsize < 4 else gradient
    return total.add_(gradient)


def _autocast_of_now(device_type: str) -> Callable[[], AbstractContextManager[object]]:
    """The autocast mode of now, to enter again: what torch.amp.custom_fwd and custom_bwd do, for any device."""
    enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    return lambda: torch.autocast(device_type, enabled=enabled, dtype=dtype)


def _random_state_of_now(x: Tensor) -> Callable[[], AbstractContextManager[object]]:
    """The state of the random number generators of now, to enter again and leave as if nothing had been drawn."""
    state, (devices, device_states) = torch.get_rng_state(), get_device_states(x)

    @contextmanager
    def same_random_state() -> Iterator[None]:
        kind = x.device.type
        with torch.random.fork_rng(devices, device_type=kind if devices else 'cuda'):
            torch.set_rng_state(state)
            set_device_states(devices, device_states, device_type=kind if devices else None)
            yield

    return same_random_state
