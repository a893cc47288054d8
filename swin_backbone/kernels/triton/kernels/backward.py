"""The gradient of attention inside windows: a kernel for windows of a tile, two kernels for larger windows.

A gradient of a token is written once. A program sums over its windows, in float32: the gradient of the bias in
registers, and the gradients of the padding's key and value in memory of its own, since few windows hold padding. The
caller sums over programs. All sums have a fixed order.

Layout of a tile: Q query places, K key places, D channels of a head, all powers of two. P programs for all windows, h
heads, N places of a window, C channels.
"""

import triton
import triton.language as tl

from .common import SIZE_NAMES, compute_logits, dot, find_tokens, load_bias, load_keys_values, reaches_over


@triton.jit
def add_padding(ptr, grad, token, num_tokens, mask):
    """Add the gradients of padding, of a tile (K, D), to a program's own sums (D,)."""
    total = tl.sum(tl.where((token == num_tokens)[:, None], grad, 0.0), 0)
    tl.atomic_add(ptr, total, mask=mask, sem='relaxed')  # no other program adds here: the order is fixed


@triton.jit(do_not_specialize=SIZE_NAMES)
def attend_backward(
    grad_ptr, qkv_ptr, padding_ptr, bias_ptr, lse_ptr, delta_ptr, grad_qkv_ptr, grad_bias_ptr, grad_padding_ptr,
    qkv_stride, num_windows, num_tokens, height, width, rows, columns, scale,
    HEAD_DIM: tl.constexpr, WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, MASK_PADDING: tl.constexpr, MASKED: tl.constexpr,
    Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr, INDEX: tl.constexpr,
    NEEDS_PADDING: tl.constexpr,
):  # fmt: skip
    """Write the gradients of K keys, of the keys' values and of the keys' biases, summed over all queries.

    A tile with all keys also computes the gradients of queries. `grad_bias` is (P, h, N, N), `grad_padding` (P, blocks,
    2C): key and value.

    Grid: heads, programs for all windows, blocks of K places.
    """
    PLACES: tl.constexpr = WINDOW_H * WINDOW_W
    heads = tl.num_programs(0)
    channels = heads * HEAD_DIM
    head, program = tl.program_id(0), tl.program_id(1)
    block = 0 if PLACES <= K else tl.program_id(2)  # constant 0: queries and keys are the same tokens
    query, key, dim = tl.arange(0, Q), block * K + tl.arange(0, K), tl.arange(0, D)
    at_head = head * HEAD_DIM + dim[None, :]
    dim_mask = (dim < HEAD_DIM)[None, :]
    at_padding = (program * tl.num_programs(2) + block) * (2 * channels) + head * HEAD_DIM + dim
    bias = load_bias(bias_ptr, head, query, key, PLACES, K)
    grad_bias = tl.zeros((Q, K), tl.float32)
    for window in range(program, num_windows, tl.num_programs(1)):
        token_q = find_tokens(
            window, query, num_tokens, height, width, rows, columns,
            WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, INDEX,
        )  # fmt: skip
        token_k = find_tokens(
            window, key, num_tokens, height, width, rows, columns,
            WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, INDEX,
        )  # fmt: skip
        q_mask, k_mask = (token_q < num_tokens)[:, None] & dim_mask, (token_k < num_tokens)[:, None] & dim_mask
        q = tl.load(qkv_ptr + token_q[:, None] * qkv_stride + at_head, mask=q_mask, other=0.0)
        k, v = load_keys_values(qkv_ptr, padding_ptr, token_k, num_tokens, qkv_stride, at_head, channels, dim_mask)
        grad = tl.load(grad_ptr + token_q[:, None] * channels + at_head, mask=q_mask, other=0.0)
        at_lse = (tl.cast(window, INDEX) * heads + head) * PLACES + query
        lse = tl.load(lse_ptr + at_lse, mask=query < PLACES, other=0.0)
        logits = compute_logits(
            q, k, bias, scale, window, num_windows, query, key, height, width, rows, columns,
            WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING, MASKED, PRECISION, WIDEN,
        )  # fmt: skip
        weights = tl.exp2(logits - lse[:, None])
        grad_v = dot(tl.trans(weights.to(q.dtype)), grad, PRECISION, WIDEN)
        at_grad_k = grad_qkv_ptr + token_k[:, None] * (3 * channels) + at_head + channels
        tl.store(at_grad_k + channels, grad_v.to(q.dtype), mask=k_mask)  # at once, to free registers
        if NEEDS_PADDING:  # noqa: SIM102 - the first is known at compile time, the second depends on the window
            if reaches_over(window, height, width, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W):
                add_padding(grad_padding_ptr + at_padding + channels, grad_v, token_k, num_tokens, dim < HEAD_DIM)
        grad_weights = dot(grad, tl.trans(v), PRECISION, WIDEN)
        if PLACES <= K:
            delta = tl.sum(weights * grad_weights, 1)
        else:  # the tile has only some keys
            delta = tl.load(delta_ptr + at_lse, mask=query < PLACES, other=0.0)
        grad_logits = weights * (grad_weights - delta[:, None])
        grad_bias += grad_logits
        grad_logits_cast = grad_logits.to(q.dtype)
        grad_k = dot(tl.trans(grad_logits_cast), q, PRECISION, WIDEN) * scale
        tl.store(at_grad_k, grad_k.to(q.dtype), mask=k_mask)
        if NEEDS_PADDING:  # noqa: SIM102
            if reaches_over(window, height, width, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W):
                add_padding(grad_padding_ptr + at_padding, grad_k, token_k, num_tokens, dim < HEAD_DIM)
        if PLACES <= K:
            grad_q = dot(grad_logits_cast, k, PRECISION, WIDEN) * scale
            at_grad_q = grad_qkv_ptr + token_q[:, None] * (3 * channels) + at_head
            tl.store(at_grad_q, grad_q.to(q.dtype), mask=q_mask)
    grad_bias_ptr += (tl.cast(program, tl.int64) * heads + head) * (PLACES * PLACES)
    at_bias = query[:, None] * PLACES + key[None, :]
    tl.store(grad_bias_ptr + at_bias, grad_bias, mask=(query < PLACES)[:, None] & (key < PLACES)[None, :])


@triton.jit(do_not_specialize=SIZE_NAMES)
def attend_backward_queries(
    grad_ptr, qkv_ptr, padding_ptr, bias_ptr, lse_ptr, delta_ptr, out_ptr, grad_qkv_ptr,
    qkv_stride, num_windows, num_tokens, height, width, rows, columns, scale,
    HEAD_DIM: tl.constexpr, WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, MASK_PADDING: tl.constexpr, MASKED: tl.constexpr,
    Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Write the gradients of Q queries, from all keys, K at a time.

    Grid: heads, programs for all windows, blocks of Q places.
    """
    PLACES: tl.constexpr = WINDOW_H * WINDOW_W
    heads, head = tl.num_programs(0), tl.program_id(0)
    channels = heads * HEAD_DIM
    query, dim = tl.program_id(2) * Q + tl.arange(0, Q), tl.arange(0, D)
    at_head = head * HEAD_DIM + dim[None, :]
    dim_mask = (dim < HEAD_DIM)[None, :]
    for window in range(tl.program_id(1), num_windows, tl.num_programs(1)):
        token_q = find_tokens(
            window, query, num_tokens, height, width, rows, columns,
            WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, INDEX,
        )  # fmt: skip
        mask = (token_q < num_tokens)[:, None] & dim_mask
        q = tl.load(qkv_ptr + token_q[:, None] * qkv_stride + at_head, mask=mask, other=0.0)
        grad = tl.load(grad_ptr + token_q[:, None] * channels + at_head, mask=mask, other=0.0)
        out = tl.load(out_ptr + token_q[:, None] * channels + at_head, mask=mask, other=0.0)
        delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
        at_lse = (tl.cast(window, INDEX) * heads + head) * PLACES + query
        lse = tl.load(lse_ptr + at_lse, mask=query < PLACES, other=0.0)
        tl.store(delta_ptr + at_lse, delta, mask=query < PLACES)
        grad_q = tl.zeros((Q, D), tl.float32)
        for start in range(0, PLACES, K):
            key = start + tl.arange(0, K)
            token_k = find_tokens(
                window, key, num_tokens, height, width, rows, columns,
                WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, INDEX,
            )  # fmt: skip
            k, v = load_keys_values(qkv_ptr, padding_ptr, token_k, num_tokens, qkv_stride, at_head, channels, dim_mask)
            bias = load_bias(bias_ptr, head, query, key, PLACES, K)
            logits = compute_logits(
                q, k, bias, scale, window, num_windows, query, key, height, width, rows, columns,
                WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING, MASKED, PRECISION, WIDEN,
            )  # fmt: skip
            weights = tl.exp2(logits - lse[:, None])
            grad_logits = weights * (dot(grad, tl.trans(v), PRECISION, WIDEN) - delta[:, None])
            grad_q += dot(grad_logits.to(q.dtype), k, PRECISION, WIDEN)
        at_grad_q = grad_qkv_ptr + token_q[:, None] * (3 * channels) + at_head
        tl.store(at_grad_q, (grad_q * scale).to(q.dtype), mask=mask)
