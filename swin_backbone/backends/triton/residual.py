"""A residual sum and its LayerNorm as custom operators of torch; torch.compile and export see each as one operator.

Layout: T tokens of all images, B images, C channels, P programs that share the tokens.
"""

# ruff: noqa: UP006, UP035 - torch 2.4 infers an operator's schema from these names alone
from typing import Any, Dict, Optional, Protocol, Tuple

import torch
from torch import Tensor

from ..functions.gradients import Context
from .attention import on_device

TILE = 4096  # elements of a tile, which holds whole rows
PROGRAMS_PER_MULTIPROCESSOR = 4  # in backward; each program has sums of its own


@torch.library.custom_op('swin_backbone::add_norm', mutates_args=())
def add_norm(
    x_TC: Tensor,
    branch_TC: Optional[Tensor],
    factors_B: Optional[Tensor],
    weight_C: Optional[Tensor],
    bias_C: Optional[Tensor],
    eps: float,
    dtype: torch.dtype,
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """x + factor * branch, and the LayerNorm of this sum; x and branch are read once.

    Args:
        branch_TC: in any dtype; None: there is no sum, and the norm is that of x.
        factors_B: float32, drop path's factor of each image; None: 1.
        weight_C, bias_C: of the norm; None: there is no norm.
        dtype: of the norm's output.

    Returns:
        The sum, in x's dtype; its norm; and each token's mean and 1 / standard deviation, in float32. Without a branch
        the sum is empty; without a norm the other three are empty.
    """
    from .kernels.norm import add_norm_forward

    x_TC, branch_TC = x_TC.contiguous(), None if branch_TC is None else branch_TC.contiguous()
    results = _outputs(x_TC, branch_TC, weight_C, dtype)
    tokens, channels = x_TC.shape
    tile = _tile(channels)
    with on_device(x_TC.device):
        add_norm_forward[(-(-tokens // tile['R']),)](
            *(x_TC, branch_TC, factors_B, weight_C, bias_C, *results),
            *(tokens, _tokens_per_image(tokens, factors_B), channels, eps),
            **tile,
            **_has(branch_TC is not None, factors_B, weight_C),
        )
    return results


@add_norm.register_fake
def _(x_TC: Tensor, branch_TC: Optional[Tensor], *others: Any) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    _, weight_C, _, _, dtype = others
    return _outputs(x_TC, branch_TC, weight_C, dtype)


def _outputs(
    x_TC: Tensor, branch_TC: Optional[Tensor], weight_C: Optional[Tensor], dtype: torch.dtype
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    has_norm = weight_C is not None
    stats = x_TC.shape[:1] if has_norm else (0,)
    return (
        x_TC.new_empty(x_TC.shape if branch_TC is not None else (0,)),
        x_TC.new_empty(x_TC.shape if has_norm else (0,), dtype=dtype),
        x_TC.new_empty(stats, dtype=torch.float32),
        x_TC.new_empty(stats, dtype=torch.float32),
    )


@torch.library.custom_op('swin_backbone::add_norm_backward', mutates_args=())
def add_norm_backward(
    grad_sum_TC: Tensor,
    grad_out_TC: Tensor,
    sum_TC: Optional[Tensor],
    factors_B: Optional[Tensor],
    weight_C: Optional[Tensor],
    mean_T: Tensor,
    rstd_T: Tensor,
    branch_dtype: Optional[torch.dtype],
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of `add_norm`'s x, branch, weight and bias; empty for an input that was None.

    Args:
        grad_out_TC: of the norm.
        sum_TC: the norm's input.
        branch_dtype: dtype of the branch; None: there was no branch.
    """
    from .kernels.norm import add_norm_backward as kernel

    grad_sum_TC, grad_out_TC = grad_sum_TC.contiguous(), grad_out_TC.contiguous()
    has_branch, has_norm = branch_dtype is not None, weight_C is not None
    like = grad_sum_TC if has_branch else sum_TC
    assert like is not None
    tokens, channels = like.shape
    tile = _tile(channels)
    grad_x_TC = like.new_empty(like.shape)
    grad_branch_TC = like.new_empty(like.shape if has_branch else (0,), dtype=branch_dtype or like.dtype)
    programs = min(-(-tokens // tile['R']), programs_of(like.device))
    sums_shape = (programs, channels) if has_norm else (0,)
    sums_weight_PC, sums_bias_PC = (like.new_empty(sums_shape, dtype=torch.float32) for _ in range(2))
    with on_device(like.device):
        kernel[(programs,)](
            *(grad_sum_TC, grad_out_TC, sum_TC, factors_B, weight_C, mean_T, rstd_T),
            *(grad_x_TC, grad_branch_TC, sums_weight_PC, sums_bias_PC),
            *(tokens, _tokens_per_image(tokens, factors_B), channels),
            **tile,
            **_has(has_branch, factors_B, weight_C),
        )
    if weight_C is None:
        return grad_x_TC, grad_branch_TC, sums_weight_PC, sums_bias_PC
    grad_weight_C, grad_bias_C = (sums.sum(0).to(weight_C.dtype) for sums in (sums_weight_PC, sums_bias_PC))
    return grad_x_TC, grad_branch_TC, grad_weight_C, grad_bias_C


@add_norm_backward.register_fake
def _(
    grad_sum_TC: Tensor,
    grad_out_TC: Tensor,
    sum_TC: Optional[Tensor],
    factors_B: Optional[Tensor],
    weight_C: Optional[Tensor],
    mean_T: Tensor,
    rstd_T: Tensor,
    branch_dtype: Optional[torch.dtype],
) -> Tuple[Tensor, ...]:
    like = grad_sum_TC if branch_dtype is not None else sum_TC
    assert like is not None
    grad_branch_TC = like.new_empty(like.shape if branch_dtype is not None else (0,), dtype=branch_dtype or like.dtype)
    shape, dtype = ((0,), torch.float32) if weight_C is None else (weight_C.shape, weight_C.dtype)
    of_norm = [like.new_empty(shape, dtype=dtype) for _ in range(2)]
    return like.new_empty(like.shape), grad_branch_TC, *of_norm


class _Saved(Context, Protocol):
    branch_dtype: Optional[torch.dtype]


def _keep_for_backward(ctx: _Saved, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
    x_TC, branch_TC, factors_B, weight_C, *_ = inputs
    sum_TC, _, mean_T, rstd_T = output
    normed = None if weight_C is None else x_TC if branch_TC is None else sum_TC
    ctx.branch_dtype = None if branch_TC is None else branch_TC.dtype
    ctx.save_for_backward(normed, factors_B, weight_C, mean_T, rstd_T)


def _backward(
    ctx: _Saved, grad_sum_TC: Tensor, grad_out_TC: Tensor, _grad_mean: Tensor, _grad_rstd: Tensor
) -> Tuple[Optional[Tensor], ...]:
    grads = add_norm_backward(grad_sum_TC, grad_out_TC, *ctx.saved_tensors, ctx.branch_dtype)
    has_norm = ctx.saved_tensors[2] is not None
    grad_x_TC, grad_branch_TC, grad_weight_C, grad_bias_C = grads
    of_branch = grad_branch_TC if ctx.branch_dtype is not None else None
    of_norm = (grad_weight_C, grad_bias_C) if has_norm else (None, None)
    return grad_x_TC, of_branch, None, *of_norm, None, None


add_norm.register_autograd(_backward, setup_context=_keep_for_backward)


def _tile(channels: int) -> Dict[str, int]:
    """The sizes of a tile: whole rows, about `TILE` elements in total."""
    C = 1 << (channels - 1).bit_length()
    return dict(R=max(1, TILE // C), C=C, num_warps=4)


def _has(has_branch: bool, factors_B: Optional[Tensor], weight_C: Optional[Tensor]) -> Dict[str, bool]:
    return dict(HAS_BRANCH=has_branch, HAS_FACTOR=factors_B is not None, HAS_NORM=weight_C is not None)


def _tokens_per_image(tokens: int, factors_B: Optional[Tensor]) -> int:
    return tokens if factors_B is None else tokens // len(factors_B)


def programs_of(device: torch.device) -> int:
    """How many programs to launch in backward, each with sums of its own."""
    if device.type != 'cuda':
        return 2
    return PROGRAMS_PER_MULTIPROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
