"""Functions of all kernels: tokens of a window, and logits of a tile.

The kernels compute the token of a window's place from sizes alone (the paper's pad, roll and partition). Sizes also
give the regions of figure 4. The kernels need no table of indices and no attention mask.

Layout of a tile: Q query places, K key places, D channels of a head, all powers of two.
"""

import triton
import triton.language as tl

# Pictures have all sizes, so Triton must not compile a kernel again for a size of 1 or divisible by 16.
SIZE_NAMES = ['num_windows', 'num_tokens', 'height', 'width', 'rows', 'columns']
LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x * LOG2E); the hardware has exp2


@triton.jit
def _find_coordinates(
    window, place, rows, columns,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
):  # fmt: skip
    """Return row and column of places on the map, before the roll."""
    column, row = window % columns, (window // columns) % rows
    y = row * WINDOW_H + place // WINDOW_W + SHIFT_H
    x = column * WINDOW_W + place % WINDOW_W + SHIFT_W
    y = tl.where(y >= rows * WINDOW_H, y - rows * WINDOW_H, y)
    x = tl.where(x >= columns * WINDOW_W, x - columns * WINDOW_W, x)
    return y, x


@triton.jit
def find_tokens(
    window, place, num_tokens, height, width, rows, columns,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Return the tokens of places of a window; `num_tokens` for padding and after the window's last place."""
    y, x = _find_coordinates(window, place, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W)
    image = tl.cast(window // (rows * columns), INDEX)
    is_token = (place < WINDOW_H * WINDOW_W) & (y < height) & (x < width)
    return tl.where(is_token, (image * height + y) * width + x, num_tokens)


@triton.jit
def _find_regions(
    window, place, height, width, rows, columns,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
    MASK_PADDING: tl.constexpr,
):  # fmt: skip
    """Return the regions of places of a window, on the rolled map.

    Indices after the window's last place get the region of the first place, for a valid region.
    """
    place = tl.where(place < WINDOW_H * WINDOW_W, place, 0)
    # The roll's cuts, in rows and columns of the window. As scalars they need few registers.
    cut_y = (rows - (window // columns) % rows) * WINDOW_H - SHIFT_H
    cut_x = (columns - window % columns) * WINDOW_W - SHIFT_W
    region_y = (place >= cut_y * WINDOW_W).to(tl.int32)
    region_x = (place % WINDOW_W >= cut_x).to(tl.int32)
    if MASK_PADDING:
        y, x = _find_coordinates(window, place, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W)
        region_y = tl.where(y >= height, 2, region_y)
        region_x = tl.where(x >= width, 2, region_x)
    return region_y * 3 + region_x


@triton.jit
def _is_cut(window, rows, columns, MASK_PADDING: tl.constexpr):
    """Return whether a window may hold several regions.

    The roll puts several regions only into the last window of an axis. Masked padding can also reach into the
    second-last window.
    """
    edge = 1 + MASK_PADDING
    return (window % columns >= columns - edge) | ((window // columns) % rows >= rows - edge)


@triton.jit
def reaches_over(
    window, height, width, rows, columns,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
):  # fmt: skip
    """Return whether a window reaches over the edge of the map, and may hold padding or rolled tokens."""
    row, column = (window // columns) % rows, window % columns
    return ((row + 1) * WINDOW_H + SHIFT_H > height) | ((column + 1) * WINDOW_W + SHIFT_W > width)


@triton.jit
def load_bias(bias_ptr, head, query, key, PLACES: tl.constexpr, K: tl.constexpr):
    """Return a tile of a head's bias times LOG2E; -inf for keys after the window's last place."""
    mask = (query < PLACES)[:, None] & (key < PLACES)[None, :]
    bias = tl.load(bias_ptr + (head * PLACES + query[:, None]) * PLACES + key[None, :], mask=mask, other=0.0)
    bias = bias.to(tl.float32) * LOG2E
    if PLACES % K == 0:
        return bias
    return tl.where((key < PLACES)[None, :], bias, float('-inf'))


@triton.jit
def load_keys_values(qkv_ptr, padding_ptr, token, num_tokens, qkv_stride, at_head, channels, mask):
    """Return k and v of a head's tokens, two tiles (K, D). Padding has k and v of `padding`."""
    row = tl.where(token < num_tokens, qkv_ptr + token * qkv_stride, padding_ptr)
    at_k = row[:, None] + at_head + channels
    return tl.load(at_k, mask=mask, other=0.0), tl.load(at_k + channels, mask=mask, other=0.0)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """Return the product a b, summed in float32.

    WIDEN casts to float32 first: the interpreter's bfloat16 product is wrong.
    """
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def compute_logits(
    q, k, bias, scale, window, num_windows, query, key, height, width, rows, columns,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, SHIFT_H: tl.constexpr, SHIFT_W: tl.constexpr,
    MASK_PADDING: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Return LOG2E (scale q k^T) + bias, -inf between regions: (Q, K)."""
    logits = dot(q, tl.trans(k), PRECISION, WIDEN) * (scale * LOG2E) + bias
    if MASKED:  # noqa: SIM102 - the first is known at compile time, the second depends on the window
        if _is_cut(window, rows, columns, MASK_PADDING):
            # `zero` keeps the regions inside the loop over windows. The compiler cannot prove that it is 0, and would
            # else compute the regions before the loop, where they fill too many registers.
            zero = window // num_windows
            region_q = _find_regions(
                window, query + zero, height, width, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING
            )
            region_k = _find_regions(
                window, key + zero, height, width, rows, columns, WINDOW_H, WINDOW_W, SHIFT_H, SHIFT_W, MASK_PADDING
            )
            logits = tl.where(region_q[:, None] == region_k[None, :], logits, float('-inf'))
    return logits
