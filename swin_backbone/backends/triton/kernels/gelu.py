"""A bias and the exact GELU of rows of hidden tokens, in one pass over memory: forward and backward.

Layout of a tile: R rows (tokens), C of their channels, a power of two.
"""

import triton
import triton.language as tl

INV_SQRT_2 = tl.constexpr(0.7071067811865476)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)


@triton.jit
def bias_gelu_forward(hidden_ptr, bias_ptr, out_ptr, num_tokens, channels, R: tl.constexpr, C: tl.constexpr):
    """GELU(hidden + bias). Grid: blocks of R rows, blocks of C channels."""
    row, column = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    there = (row < num_tokens)[:, None] & (column < channels)[None, :]
    at = row.to(tl.int64)[:, None] * channels + column[None, :]
    bias = tl.load(bias_ptr + column, mask=column < channels, other=0.0).to(tl.float32)
    x = tl.load(hidden_ptr + at, mask=there, other=0.0).to(tl.float32) + bias[None, :]
    y = 0.5 * x * (1.0 + tl.erf(x * INV_SQRT_2))
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def bias_gelu_backward(
    grad_ptr, hidden_ptr, bias_ptr, grad_hidden_ptr, grad_bias_ptr, num_tokens, channels,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The gradient of hidden, and that of the bias, summed over the rows of each program: (P, channels).

    GELU's slope is computed again from hidden.

    Grid: programs that share the blocks of R rows, blocks of C channels.
    """
    column = tl.program_id(1) * C + tl.arange(0, C)
    bias = tl.load(bias_ptr + column, mask=column < channels, other=0.0).to(tl.float32)
    grad_bias = tl.zeros((C,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(num_tokens, R), tl.num_programs(0)):
        row = block * R + tl.arange(0, R)
        there = (row < num_tokens)[:, None] & (column < channels)[None, :]
        at = row.to(tl.int64)[:, None] * channels + column[None, :]
        x = tl.load(hidden_ptr + at, mask=there, other=0.0).to(tl.float32) + bias[None, :]
        grad = tl.load(grad_ptr + at, mask=there, other=0.0).to(tl.float32)
        below = 0.5 * (1.0 + tl.erf(x * INV_SQRT_2))
        grad = grad * (below + x * INV_SQRT_2PI * tl.exp(-0.5 * x * x))
        grad_bias += tl.sum(grad, 0)
        tl.store(grad_hidden_ptr + at, grad.to(grad_hidden_ptr.dtype.element_ty), mask=there)
    tl.store(grad_bias_ptr + tl.program_id(0) * channels + column, grad_bias, mask=column < channels)
