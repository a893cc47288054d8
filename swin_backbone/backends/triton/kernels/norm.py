"""A residual sum and its LayerNorm in one pass over memory, for rows of tokens: forward and backward.

Layout of a tile: R rows (tokens), C channels of each, a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def add_norm_forward(
    x_ptr, branch_ptr, factor_ptr, weight_ptr, bias_ptr, sum_ptr, out_ptr, mean_ptr, rstd_ptr,
    num_tokens, tokens_per_image, channels, eps,
    R: tl.constexpr, C: tl.constexpr,
    HAS_BRANCH: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """sum = x + factor * branch; out = LayerNorm(sum). Grid: blocks of R rows."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    row_there, of_row = row < num_tokens, (column < channels)[None, :]
    there = row_there[:, None] & of_row
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    x = tl.load(x_ptr + at, mask=there, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        branch = tl.load(branch_ptr + at, mask=there, other=0.0).to(tl.float32)
        if HAS_FACTOR:
            factor = tl.load(factor_ptr + row // tokens_per_image, mask=row_there, other=0.0)
            branch = branch * factor[:, None]
        rounded = (x + branch).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + at, rounded, mask=there)
        x = rounded.to(tl.float32)
    if HAS_NORM:
        mean = tl.sum(x, 1) / channels
        centred = tl.where(of_row, x - mean[:, None], 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / channels + eps)
        weight = tl.load(weight_ptr + column, mask=column < channels, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + column, mask=column < channels, other=0.0).to(tl.float32)
        out = centred * rstd[:, None] * weight[None, :] + bias[None, :]
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=there)
        tl.store(mean_ptr + row, mean, mask=row_there)
        tl.store(rstd_ptr + row, rstd, mask=row_there)


@triton.jit
def add_norm_backward(
    grad_sum_ptr, grad_out_ptr, sum_ptr, factor_ptr, weight_ptr, mean_ptr, rstd_ptr,
    grad_x_ptr, grad_branch_ptr, grad_weight_ptr, grad_bias_ptr,
    num_tokens, tokens_per_image, channels,
    R: tl.constexpr, C: tl.constexpr,
    HAS_BRANCH: tl.constexpr, HAS_FACTOR: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """The gradients of x, of the branch, and of the norm's weight and bias.

    Grid: programs that share the blocks of R rows. There are no atomic adds: `grad_weight` and `grad_bias` have one row
    for each program, summed over the rows of that program.
    """
    column = tl.arange(0, C)
    of_row = (column < channels)[None, :]
    if HAS_NORM:
        weight = tl.load(weight_ptr + column, mask=column < channels, other=0.0).to(tl.float32)
        grad_weight, grad_bias = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(num_tokens, R), tl.num_programs(0)):
        row = block * R + tl.arange(0, R)
        row_there = row < num_tokens
        there = row_there[:, None] & of_row
        at = row.to(tl.int64)[:, None] * channels + column[None, :]
        grad = tl.zeros((R, C), tl.float32)
        if HAS_BRANCH:
            grad += tl.load(grad_sum_ptr + at, mask=there, other=0.0).to(tl.float32)
        if HAS_NORM:
            x = tl.load(sum_ptr + at, mask=there, other=0.0).to(tl.float32)
            grad_out = tl.load(grad_out_ptr + at, mask=there, other=0.0).to(tl.float32)
            mean = tl.load(mean_ptr + row, mask=row_there, other=0.0)
            rstd = tl.load(rstd_ptr + row, mask=row_there, other=0.0)
            normed = tl.where(there, (x - mean[:, None]) * rstd[:, None], 0.0)
            grad_weight += tl.sum(grad_out * normed, 0)
            grad_bias += tl.sum(grad_out, 0)
            weighted = grad_out * weight[None, :]
            along, across = tl.sum(weighted * normed, 1) / channels, tl.sum(weighted, 1) / channels
            grad += rstd[:, None] * (weighted - across[:, None] - normed * along[:, None])
        tl.store(grad_x_ptr + at, grad.to(grad_x_ptr.dtype.element_ty), mask=there)
        if HAS_BRANCH:
            if HAS_FACTOR:
                factor = tl.load(factor_ptr + row // tokens_per_image, mask=row_there, other=0.0)
                grad = grad * factor[:, None]
            tl.store(grad_branch_ptr + at, grad.to(grad_branch_ptr.dtype.element_ty), mask=there)
    if HAS_NORM:
        at_program = tl.program_id(0) * channels + column
        tl.store(grad_weight_ptr + at_program, grad_weight, mask=column < channels)
        tl.store(grad_bias_ptr + at_program, grad_bias, mask=column < channels)
