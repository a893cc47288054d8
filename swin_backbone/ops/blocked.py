"""Running a block over its windows: all at once, or strip by strip so that what lies between stays in cache.

Windows are independent, so a strip of them is a block of its own. Forward keeps the block's input alone; backward
recomputes each strip, takes its gradient while it is in cache, and sums the gradients of the weights over strips.

Layout: B batch, H W height and width of a map, C channels, T tokens.
"""

from contextlib import contextmanager, nullcontext
from typing import Callable, NamedTuple, Optional, Union

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from .sums import GradientSums
from .windows import Strip, WindowGrid

# Found by tools/benchmark.py --strip-tokens, with 1 MiB of L2 cache a core. For each thread: the elements of a strip
# of the map, of which four times as many are the widest tensor, the hidden map of the MLP; and the tokens below which
# GEMMs, above all those whose sum runs over tokens, are too small to run at full speed.
AUTO_STRIP_ELEMENTS = 2048 * 96
AUTO_STRIP_MIN_TOKENS = 1024

StripTokens = Union[int, str, None]


class Computation(NamedTuple):
    """What is done to the tokens of a strip, and how its gradient is found.

    forward(x, strip, weights) gives what becomes of a strip's tokens x. backward(grad, x, strip, weights, sums) gives
    the gradient of x, which may be None where `sums` does not want 'x', and adds those of the weights to `sums`.
    `weights` is a NamedTuple of tensors.
    """

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    draws: bool = False  # whether forward draws random numbers, which backward then draws again


def in_strips(
    computation: Computation, x_BHWC: Tensor, weights: tuple, strips: list[Strip], overwrite: bool = False
) -> Tensor:
    """Compute (T, C) tokens strip after strip, in which each token is once; keep `x_BHWC` alone for backward.

    Args:
        overwrite: without gradients, put what becomes of a token in its own place, so that there is no second map:
            fresh memory of that size costs more than it is to fill it.
    """
    x_TC = x_BHWC.flatten(0, 2)
    if overwrite and not torch.is_grad_enabled():
        return _run(computation, strips, weights, x_TC, out_TC=x_TC).view_as(x_BHWC)
    return _Recomputed.apply(computation, strips, type(weights), x_TC, *weights).view_as(x_BHWC)


def recomputed(computation: Computation, x: Tensor, weights: tuple) -> Tensor:
    """Compute all at once, of any shape and without a strip; keep `x` alone for backward."""
    return _Recomputed.apply(computation, [None], type(weights), x, *weights)


def saves_memory(strip_tokens: StripTokens, x: Tensor) -> bool:
    """Whether to recompute in backward rather than keep: where strips are run."""
    return not _is_one_graph(x) and (
        isinstance(strip_tokens, int) or (strip_tokens == 'auto' and x.device.type == 'cpu')
    )


def tokens_per_strip(strip_tokens: Union[int, str], channels: int) -> int:
    """How many tokens of so many channels make a strip."""
    if strip_tokens == 'auto':
        return max(AUTO_STRIP_MIN_TOKENS, AUTO_STRIP_ELEMENTS // channels) * torch.get_num_threads()
    return strip_tokens


def choose_strips(
    strip_tokens: StripTokens, x_BHWC: Tensor, grid: WindowGrid, recompute: bool
) -> Optional[list[Strip]]:
    """The strips for a map of this size, on this device; None: the whole map at once, without recomputation.

    torch.compile, export and tracing need one graph. On an accelerator one launch over all windows is best, and
    memory is saved, by recomputing them as one strip, only if asked for.

    Args:
        strip_tokens: places (tokens and padding) of one strip at the most, at least one window. 'auto': so many
            that a strip fits in a CPU's cache, and all on other devices. None: all.
        recompute: whether to recompute in backward even where there is but one strip.
    """
    if saves_memory(strip_tokens, x_BHWC):
        return grid.strips(max(1, tokens_per_strip(strip_tokens, x_BHWC.shape[-1]) // grid.window_area))
    return [grid.whole()] if recompute and not _is_one_graph(x_BHWC) else None


def _run(
    computation: Computation,
    strips: list[Optional[Strip]],
    weights: tuple,
    x_TC: Tensor,
    out_TC: Optional[Tensor] = None,
) -> Tensor:
    for strip in strips:
        y_TC = computation.forward(_rows(x_TC, strip), strip, weights)
        if _is_all(strip):
            return y_TC
        if out_TC is None or out_TC.dtype != y_TC.dtype:  # known only now: under autocast it need not be x's
            out_TC = y_TC.new_empty(x_TC.shape)
        out_TC.index_copy_(0, strip.tokens_T, y_TC)
    return out_TC


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, computation, strips, weights_type, x_TC, *weights):
        ctx.save_for_backward(x_TC, *weights)
        ctx.computation, ctx.strips, ctx.weights_type = computation, strips, weights_type
        ctx.same_mode = _remember_autocast(x_TC.device.type)
        ctx.same_draws = _remember_draws(x_TC) if computation.draws else nullcontext
        return _run(computation, strips, weights_type(*weights), x_TC)

    @staticmethod
    def backward(ctx, grad_TC):
        if torch.is_grad_enabled():
            raise RuntimeError(
                'a block that runs in strips has no second derivative: for create_graph=True build the backbone '
                'with strip_tokens=None and with_cp=False'
            )
        x_TC, *weights = ctx.saved_tensors
        grad_TC = grad_TC.contiguous()
        names, needed = ctx.weights_type._fields, ctx.needs_input_grad[3:]
        sums = GradientSums([name for name, wanted in zip(('x', *names), needed) if wanted])
        weights, grad_x_TC = ctx.weights_type(*weights), None
        with ctx.same_draws(), ctx.same_mode():
            for strip in ctx.strips:
                grad, x = _rows(grad_TC, strip), _rows(x_TC, strip)
                grad_x = ctx.computation.backward(grad, x, strip, weights, sums)
                if _is_all(strip):
                    grad_x_TC = grad_x
                    continue
                if grad_x_TC is None:
                    grad_x_TC = torch.empty_like(x_TC)
                grad_x_TC.index_copy_(0, strip.tokens_T, grad_x)
        return None, None, None, grad_x_TC, *(sums[name] for name in names)


def _is_one_graph(x: Tensor) -> bool:
    """Whether what is done to `x` is recorded and not computed, so that there is nothing to save."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or x.device.type == 'meta'


def _is_all(strip: Optional[Strip]) -> bool:
    return strip is None or strip.tokens_T is None


def _rows(x_TC: Tensor, strip: Optional[Strip]) -> Tensor:
    return x_TC if _is_all(strip) else x_TC.index_select(0, strip.tokens_T)


def _remember_autocast(device_type: str) -> Callable:
    """The autocast mode of now, to enter again: what torch.amp.custom_fwd and custom_bwd do, for any device."""
    mode = dict(enabled=torch.is_autocast_enabled(device_type), dtype=torch.get_autocast_dtype(device_type))
    return lambda: torch.autocast(device_type, **mode)


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
