"""Attention inside windows in Triton: one kernel forward, one for its gradient.

A program serves one head of several windows: it loads that head's bias once, and sums that head's bias gradient in
registers. Which token sits in which place of which window, and which places may attend to each other, is arithmetic
on sizes (the paper's pad, roll and partition, and figure 4's regions), so there is no table of indices, no mask and no
copy in window order: q, k and v are read where the projection left them, and written back to where they came from.

Layout of a tile: Q query places, K key places, D channels of a head, each rounded up to a power of two.
Offsets into q, k and v are int64: T * 3C may be more than 2^31.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x * LOG2E), and exp2 is what the hardware has


@triton.jit
def _locate(
    window, place, height, width, rows, columns,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
    MASK_PADDING: tl.constexpr,
):  # fmt: skip
    """For places of a window: the token there, whether it is padding, and the region of the rolled map it is in."""
    column, row = window % columns, (window // columns) % rows
    image = tl.cast(window // (rows * columns), tl.int64)
    rolled_y = row * WINDOW_H + place // WINDOW_W
    rolled_x = column * WINDOW_W + place % WINDOW_W
    y, x = rolled_y + SHIFT_H, rolled_x + SHIFT_W
    region_y = (rolled_y >= rows * WINDOW_H - SHIFT_H).to(tl.int32)
    region_x = (rolled_x >= columns * WINDOW_W - SHIFT_W).to(tl.int32)
    y = tl.where(y >= rows * WINDOW_H, y - rows * WINDOW_H, y)
    x = tl.where(x >= columns * WINDOW_W, x - columns * WINDOW_W, x)
    if MASK_PADDING:
        region_y = tl.where(y >= height, 2, region_y)
        region_x = tl.where(x >= width, 2, region_x)
    token = (image * height + y) * width + x
    return token, (y >= height) | (x >= width), region_y * 3 + region_x


@triton.jit
def _load_bias(bias_ptr, head, query, key, PLACES: tl.constexpr):
    """A tile of a head's bias, times LOG2E; -inf for keys that are no place of a window."""
    there = (query < PLACES)[:, None] & (key < PLACES)[None, :]
    bias = tl.load(bias_ptr + (head * PLACES + query[:, None]) * PLACES + key[None, :], mask=there, other=0.0)
    return tl.where((key < PLACES)[None, :], bias.to(tl.float32) * LOG2E, float('-inf'))


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """a b, summed in float32. The interpreter's product of bfloat16 is wrong, so there both are made float32 first."""
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _logits(
    q, k, bias, scale, window, rows, columns, region_q, region_k,
    MASKED: tl.constexpr, MASK_PADDING: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """(scale q k^T + bias) * LOG2E, -inf between regions: (Q, K)."""
    logits = _dot(q, tl.trans(k), PRECISION, WIDEN) * (scale * LOG2E) + bias
    if MASKED:
        # The roll cuts the last window of an axis alone; padding can reach into the last but one.
        edge = 1 + MASK_PADDING
        cut = ((window % columns) >= columns - edge) | ((window // columns) % rows >= rows - edge)
        if cut:
            logits = tl.where(region_q[:, None] == region_k[None, :], logits, float('-inf'))
    return logits


@triton.jit
def attend(
    qkv_ptr, bias_ptr, out_ptr, lse_ptr,
    qkv_stride, num_windows, padding_row, height, width, rows, columns, scale,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, MASK_PADDING: tl.constexpr, PADDED: tl.constexpr,
    MASKED: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """softmax(scale q k^T + bias) v, and the log2 of the sum that the softmax divides by: (L, h, N).

    Grid: heads, programs that share the windows, blocks of Q places. `padding_row` is the row of qkv that holds what
    padding carries.
    """
    PLACES: tl.constexpr = WINDOW_H * WINDOW_W
    CHANNELS: tl.constexpr = HEADS * HEAD_DIM
    head = tl.program_id(0)
    query, key, dim = tl.program_id(2) * Q + tl.arange(0, Q), tl.arange(0, K), tl.arange(0, D)
    # What is no place of a window is put where its first place is, so that it is in some region, and read as 0.
    query_place, key_place = tl.where(query < PLACES, query, 0), tl.where(key < PLACES, key, 0)
    query_there = (query < PLACES)[:, None] & (dim < HEAD_DIM)[None, :]
    key_there = (key < PLACES)[:, None] & (dim < HEAD_DIM)[None, :]
    bias = _load_bias(bias_ptr, head, query, key, PLACES)
    at_head = head * HEAD_DIM + dim[None, :]
    for window in range(tl.program_id(1), num_windows, tl.num_programs(1)):
        token_q, is_padding_q, region_q = _locate(
            window, query_place, height, width, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING
        )
        token_k, is_padding_k, region_k = _locate(
            window, key_place, height, width, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING
        )
        if PADDED:
            row_q = tl.where(is_padding_q, padding_row, token_q)
            row_k = tl.where(is_padding_k, padding_row, token_k)
            out_there = query_there & (is_padding_q == 0)[:, None]
        else:
            row_q, row_k, out_there = token_q, token_k, query_there
        at_q = qkv_ptr + row_q[:, None] * qkv_stride + at_head
        at_k = qkv_ptr + row_k[:, None] * qkv_stride + at_head
        q = tl.load(at_q, mask=query_there, other=0.0)
        k = tl.load(at_k + CHANNELS, mask=key_there, other=0.0)
        v = tl.load(at_k + 2 * CHANNELS, mask=key_there, other=0.0)
        logits = _logits(
            q, k, bias, scale, window, rows, columns, region_q, region_k, MASKED, MASK_PADDING, PRECISION, WIDEN
        )
        largest = tl.max(logits, 1)
        weights = tl.exp2(logits - largest[:, None])
        total = tl.sum(weights, 1)
        out = _dot(weights.to(v.dtype), v, PRECISION, WIDEN) / total[:, None]
        tl.store(out_ptr + token_q[:, None] * CHANNELS + at_head, out.to(out_ptr.dtype.element_ty), mask=out_there)
        at_lse = (tl.cast(window, tl.int64) * HEADS + head) * PLACES + query
        tl.store(lse_ptr + at_lse, largest + tl.log2(total), mask=query < PLACES)


@triton.jit
def attend_backward(
    grad_ptr, qkv_ptr, bias_ptr, lse_ptr, delta_ptr, grad_qkv_ptr, grad_bias_ptr, grad_padding_ptr,
    grad_stride, qkv_stride, num_windows, padding_row, height, width, rows, columns, scale,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr,
    SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, MASK_PADDING: tl.constexpr, PADDED: tl.constexpr,
    MASKED: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    OF_QUERIES: tl.constexpr, OF_KEYS: tl.constexpr, NEEDS_BIAS: tl.constexpr,
):  # fmt: skip
    """The gradients of queries and of the bias (OF_QUERIES), of keys and values (OF_KEYS), or of all.

    A tile has all keys of its queries, or all queries of its keys: both, where a window fits in one tile; else the
    gradients of queries come first, and leave each query's `delta`, the sum of weight * gradient of the weight, for
    those of keys. Each gradient of a token is written once. Gradients of the bias and of what padding carries are
    summed here over the windows of a program, (programs, h, N, N) and (programs, blocks, 2C) in float32, and over
    programs by the caller: always in the same order.

    Grid: heads, programs that share the windows, blocks of Q queries or of K keys.
    """
    PLACES: tl.constexpr = WINDOW_H * WINDOW_W
    CHANNELS: tl.constexpr = HEADS * HEAD_DIM
    head, program, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    query, key, dim = tl.arange(0, Q), tl.arange(0, K), tl.arange(0, D)
    if OF_QUERIES:
        query += block * Q
    else:
        key += block * K
    query_place, key_place = tl.where(query < PLACES, query, 0), tl.where(key < PLACES, key, 0)
    query_there = (query < PLACES)[:, None] & (dim < HEAD_DIM)[None, :]
    key_there = (key < PLACES)[:, None] & (dim < HEAD_DIM)[None, :]
    bias = _load_bias(bias_ptr, head, query, key, PLACES)
    at_head = head * HEAD_DIM + dim[None, :]
    grad_bias = tl.zeros((Q, K), tl.float32)
    grad_padding_k, grad_padding_v = tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32)
    for window in range(program, num_windows, tl.num_programs(1)):
        token_q, is_padding_q, region_q = _locate(
            window, query_place, height, width, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING
        )
        token_k, is_padding_k, region_k = _locate(
            window, key_place, height, width, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING
        )
        if PADDED:
            row_q = tl.where(is_padding_q, padding_row, token_q)
            row_k = tl.where(is_padding_k, padding_row, token_k)
            token_there_q = query_there & (is_padding_q == 0)[:, None]
            token_there_k = key_there & (is_padding_k == 0)[:, None]
        else:
            row_q, row_k, token_there_q, token_there_k = token_q, token_k, query_there, key_there
        at_q = row_q[:, None] * qkv_stride + at_head
        at_k = row_k[:, None] * qkv_stride + at_head
        q = tl.load(qkv_ptr + at_q, mask=query_there, other=0.0)
        k = tl.load(qkv_ptr + at_k + CHANNELS, mask=key_there, other=0.0)
        v = tl.load(qkv_ptr + at_k + 2 * CHANNELS, mask=key_there, other=0.0)
        grad = tl.load(grad_ptr + token_q[:, None] * grad_stride + at_head, mask=token_there_q, other=0.0)
        at_lse = (tl.cast(window, tl.int64) * HEADS + head) * PLACES + query
        lse = tl.load(lse_ptr + at_lse, mask=query < PLACES, other=0.0)
        logits = _logits(
            q, k, bias, scale, window, rows, columns, region_q, region_k, MASKED, MASK_PADDING, PRECISION, WIDEN
        )
        weights = tl.exp2(logits - lse[:, None])
        grad_weights = _dot(grad, tl.trans(v), PRECISION, WIDEN)
        if OF_QUERIES:
            delta = tl.sum(weights * grad_weights, 1)
        else:
            delta = tl.load(delta_ptr + at_lse, mask=query < PLACES, other=0.0)
        grad_logits = weights * (grad_weights - delta[:, None])
        narrow = grad_logits.to(q.dtype)
        at_token_q = token_q[:, None] * (3 * CHANNELS) + at_head
        at_token_k = token_k[:, None] * (3 * CHANNELS) + at_head
        if OF_QUERIES:
            if NEEDS_BIAS:
                grad_bias += grad_logits
            grad_q = _dot(narrow, k, PRECISION, WIDEN) * scale
            tl.store(grad_qkv_ptr + at_token_q, grad_q.to(grad_qkv_ptr.dtype.element_ty), mask=token_there_q)
            if not OF_KEYS:
                tl.store(delta_ptr + at_lse, delta, mask=query < PLACES)
        if OF_KEYS:
            grad_k = _dot(tl.trans(narrow), q, PRECISION, WIDEN) * scale
            grad_v = _dot(tl.trans(weights.to(q.dtype)), grad, PRECISION, WIDEN)
            at_token_k = grad_qkv_ptr + at_token_k
            tl.store(at_token_k + CHANNELS, grad_k.to(grad_qkv_ptr.dtype.element_ty), mask=token_there_k)
            tl.store(at_token_k + 2 * CHANNELS, grad_v.to(grad_qkv_ptr.dtype.element_ty), mask=token_there_k)
            if PADDED:
                is_padding = (is_padding_k & (key < PLACES))[:, None]
                grad_padding_k += tl.sum(tl.where(is_padding, grad_k, 0.0), 0)
                grad_padding_v += tl.sum(tl.where(is_padding, grad_v, 0.0), 0)
    if OF_QUERIES and NEEDS_BIAS:
        at_bias = ((tl.cast(program, tl.int64) * HEADS + head) * PLACES + query[:, None]) * PLACES + key[None, :]
        tl.store(grad_bias_ptr + at_bias, grad_bias, mask=(query < PLACES)[:, None] & (key < PLACES)[None, :])
    if OF_KEYS and PADDED:
        at_padding = (program * tl.num_programs(2) + block) * (2 * CHANNELS) + head * HEAD_DIM + dim
        tl.store(grad_padding_ptr + at_padding, grad_padding_k, mask=dim < HEAD_DIM)
        tl.store(grad_padding_ptr + at_padding + CHANNELS, grad_padding_v, mask=dim < HEAD_DIM)
