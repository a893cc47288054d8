"""Attention inside windows by a kernel. The kernel reads q, k and v directly from the projection's output.

Layout of a tile: Q query places, K key places, D channels of a head, all powers of two. L windows, h heads, N places of
a window.
"""

import triton
import triton.language as tl

from .common import SIZE_NAMES, compute_logits, dot, find_tokens, load_bias, load_keys_values


@triton.jit(do_not_specialize=SIZE_NAMES)
def attend(
    qkv_ptr, padding_ptr, bias_ptr, out_ptr, lse_ptr,
    qkv_stride, num_windows, num_tokens, height, width, rows, columns, scale,
    HEAD_DIM: tl.constexpr, WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, MASK_PADDING: tl.constexpr, MASKED: tl.constexpr,
    Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Write softmax(scale q k^T + bias) v, and the log2 of the softmax's denominator: (L, h, N).

    A program computes Q queries of a head in several windows. A tile with all keys loads the bias once for all windows.
    For more keys, a step takes K keys, with an online softmax.

    A key of padding has k and v of `padding`. Queries of padding are not computed.

    Grid: heads, programs for all windows, blocks of Q places.
    """
    PLACES: tl.constexpr = WINDOW_H * WINDOW_W
    heads, head = tl.num_programs(0), tl.program_id(0)
    channels = heads * HEAD_DIM
    query, dim = tl.program_id(2) * Q + tl.arange(0, Q), tl.arange(0, D)
    at_head = head * HEAD_DIM + dim[None, :]
    dim_mask = (dim < HEAD_DIM)[None, :]
    if PLACES <= K:
        bias = load_bias(bias_ptr, head, query, tl.arange(0, K), PLACES, K)
    for window in range(tl.program_id(1), num_windows, tl.num_programs(1)):
        token_q = find_tokens(
            window, query, num_tokens, height, width, rows, columns,
            WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, INDEX,
        )  # fmt: skip
        q_mask = (token_q < num_tokens)[:, None] & dim_mask
        q = tl.load(qkv_ptr + token_q[:, None] * qkv_stride + at_head, mask=q_mask, other=0.0)
        largest = tl.full((Q,), -1e30, tl.float32)  # finite, since all keys of a tile may be outside the query's region
        total = tl.zeros((Q,), tl.float32)
        out = tl.zeros((Q, D), tl.float32)
        for start in range(0, PLACES, K):
            key = start + tl.arange(0, K)
            token_k = find_tokens(
                window, key, num_tokens, height, width, rows, columns,
                WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, INDEX,
            )  # fmt: skip
            k, v = load_keys_values(qkv_ptr, padding_ptr, token_k, num_tokens, qkv_stride, at_head, channels, dim_mask)
            if PLACES > K:
                bias = load_bias(bias_ptr, head, query, key, PLACES, K)
            logits = compute_logits(
                q, k, bias, scale, window, num_windows, query, key, height, width, rows, columns,
                WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING, MASKED, PRECISION, WIDEN,
            )  # fmt: skip
            new_largest = tl.maximum(largest, tl.max(logits, 1))
            weights = tl.exp2(logits - new_largest[:, None])
            shrink = tl.exp2(largest - new_largest)
            total = total * shrink + tl.sum(weights, 1)
            out = out * shrink[:, None] + dot(weights.to(v.dtype), v, PRECISION, WIDEN)
            largest = new_largest
        out = (out / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + token_q[:, None] * channels + at_head, out, mask=q_mask)
        at_lse = (tl.cast(window, INDEX) * heads + head) * PLACES + query
        tl.store(lse_ptr + at_lse, largest + tl.log2(total), mask=query < PLACES)
