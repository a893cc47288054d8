"""The kernels as operators of torch, which torch.compile and export see whole.

Layout: T tokens, C channels, L windows, h heads, N places of a window.
"""

import math
import os
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

PROGRAMS_PER_MULTIPROCESSOR = 8  # each serves several windows, and sums their bias gradient

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (16, 24, 32, 64)
MAX_PLACES = 256


@torch.library.custom_op('swin_backbone::attend_in_windows', mutates_args=())
def attend_in_windows(
    qkv_T3C: Tensor,
    bias_hNN: Tensor,
    batch: int,
    height: int,
    width: int,
    window_size: list[int],
    shift: list[int],
    mask_padding: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Softmax(scale q k^T + bias) v inside each window of a batch of maps.

    Args:
        qkv_T3C: query, key and value of each token of the maps, one behind the other, each with its heads one behind
            the other; and, where the maps are no whole windows, a last row of what padding holds.
        bias_hNN: the relative position bias.
        batch, height, width, window_size, shift, mask_padding: see `WindowGrid`.

    Returns:
        (T, C) without padding; and (L, h, N) float32, the log2 of the sum of exp2 of the logits times log2(e), with
        windows row by row.
    """
    from .kernels import attend

    tiling = _Tiling.of(qkv_T3C, bias_hNN, batch, height, width, window_size)
    out_TC = qkv_T3C.new_empty(tiling.num_tokens, tiling.channels)
    lse_LhN = qkv_T3C.new_empty(tiling.num_windows, len(bias_hNN), tiling.places, dtype=torch.float32)
    qkv_T3C, Q, K = _rows(qkv_T3C), tiling.block, tiling.whole
    attend[tiling.grid(Q)](
        qkv_T3C,
        bias_hNN.contiguous(),
        out_TC,
        lse_LhN,
        qkv_T3C.stride(0),
        *tiling.sizes(height, width),
        scale,
        **tiling.constants(window_size, shift, mask_padding, Q, K),
        num_warps=tiling.num_warps(Q, K),
    )
    return out_TC, lse_LhN


@attend_in_windows.register_fake
def _(qkv_T3C, bias_hNN, batch, height, width, window_size, shift, mask_padding, scale):
    rows, columns = -(-height // window_size[0]), -(-width // window_size[1])
    lse_shape = batch * rows * columns, bias_hNN.shape[0], window_size[0] * window_size[1]
    out_TC = qkv_T3C.new_empty(batch * height * width, qkv_T3C.shape[1] // 3)
    return out_TC, qkv_T3C.new_empty(lse_shape, dtype=torch.float32)


@torch.library.custom_op('swin_backbone::attend_in_windows_backward', mutates_args=())
def attend_in_windows_backward(
    grad_TC: Tensor,
    qkv_T3C: Tensor,
    bias_hNN: Tensor,
    lse_LhN: Tensor,
    batch: int,
    height: int,
    width: int,
    window_size: list[int],
    shift: list[int],
    mask_padding: bool,
    scale: float,
    needs_bias: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of `attend_in_windows`' qkv and bias; without `needs_bias` that of the bias is empty."""
    from .kernels import attend_backward

    tiling = _Tiling.of(qkv_T3C, bias_hNN, batch, height, width, window_size)
    grad_TC, qkv_T3C, bias_hNN = _rows(grad_TC), _rows(qkv_T3C), bias_hNN.contiguous()
    grad_qkv_T3C = qkv_T3C.new_empty(qkv_T3C.shape)
    block, whole = tiling.block, tiling.whole
    # What a tile has all of: keys, in the pass of queries; queries, in the pass of keys; both, if it is one pass.
    passes = [(True, True, whole, whole)] if block == whole else [(True, False, block, whole), (False, True, whole, block)]
    grid = tiling.grid(block)
    grad_bias_PhNN = lse_LhN.new_empty((grid[1], *bias_hNN.shape) if needs_bias else 0)
    grad_padding_P2C = lse_LhN.new_empty(grid[1] * grid[2] if tiling.padded else 0, 2 * tiling.channels)
    delta_LhN = torch.empty_like(lse_LhN) if len(passes) > 1 else lse_LhN
    for of_queries, of_keys, Q, K in passes:
        attend_backward[grid](
            grad_TC,
            qkv_T3C,
            bias_hNN,
            lse_LhN,
            delta_LhN,
            grad_qkv_T3C,
            grad_bias_PhNN,
            grad_padding_P2C,
            grad_TC.stride(0),
            qkv_T3C.stride(0),
            *tiling.sizes(height, width),
            scale,
            **tiling.constants(window_size, shift, mask_padding, Q, K),
            OF_QUERIES=of_queries,
            OF_KEYS=of_keys,
            NEEDS_BIAS=needs_bias,
            num_warps=tiling.num_warps(Q, K),
        )
    if len(qkv_T3C) > tiling.num_tokens:  # padding is nobody's query
        grad_qkv_T3C[-1, : tiling.channels] = 0
        grad_qkv_T3C[-1, tiling.channels :] = grad_padding_P2C.sum(0)
    grad_bias = grad_bias_PhNN.sum(0).to(bias_hNN.dtype) if needs_bias else bias_hNN.new_empty(0)
    return grad_qkv_T3C, grad_bias


@attend_in_windows_backward.register_fake
def _(grad_TC, qkv_T3C, bias_hNN, lse_LhN, *sizes_and_scale):
    return qkv_T3C.new_empty(qkv_T3C.shape), bias_hNN.new_empty(bias_hNN.shape if sizes_and_scale[-1] else 0)


def _setup_context(ctx, inputs, output):
    qkv_T3C, bias_hNN, *ctx.arguments = inputs
    ctx.save_for_backward(qkv_T3C, bias_hNN, output[1])


def _backward(ctx, grad_TC, _):
    needs_bias = ctx.needs_input_grad[1]
    grads = attend_in_windows_backward(grad_TC, *ctx.saved_tensors, *ctx.arguments, needs_bias)
    return grads[0], grads[1] if needs_bias else None, *[None] * len(ctx.arguments)


attend_in_windows.register_autograd(_backward, setup_context=_setup_context)


class _Tiling(NamedTuple):
    """How the work is cut into programs."""

    num_tokens: int
    channels: int
    heads: int
    rows: int
    columns: int
    num_windows: int
    places: int
    padded: bool
    whole: int  # places of a window, rounded up to a tile
    block: int  # of these, how many are in the shorter side of a tile
    wide: bool  # whether products are of float32
    bfloat16: bool
    device: torch.device

    @staticmethod
    def of(
        qkv_T3C: Tensor, bias_hNN: Tensor, batch: int, height: int, width: int, window_size: list[int]
    ) -> '_Tiling':
        rows, columns = -(-height // window_size[0]), -(-width // window_size[1])
        places = window_size[0] * window_size[1]
        whole = _tile(places)
        return _Tiling(
            num_tokens=batch * height * width,
            channels=qkv_T3C.shape[1] // 3,
            heads=bias_hNN.shape[0],
            rows=rows,
            columns=columns,
            num_windows=batch * rows * columns,
            places=places,
            padded=rows * window_size[0] > height or columns * window_size[1] > width,
            whole=whole,
            block=whole if whole <= 64 else 32,
            wide=qkv_T3C.dtype == torch.float32,
            bfloat16=qkv_T3C.dtype == torch.bfloat16,
            device=qkv_T3C.device,
        )

    def grid(self, block: int) -> tuple[int, int, int]:
        """Heads, programs that share the windows, blocks of a window; heads run first, as they share cache lines."""
        blocks = -(-self.places // block)
        programs = PROGRAMS_PER_MULTIPROCESSOR * _multiprocessors(self.device)
        return self.heads, max(1, min(self.num_windows, programs // (self.heads * blocks))), blocks

    def sizes(self, height: int, width: int) -> tuple[int, ...]:
        return self.num_windows, self.num_tokens, height, width, self.rows, self.columns

    def num_warps(self, Q: int, K: int) -> int:
        return 8 if Q * K > 64 * 64 else 4

    def constants(self, window_size: list[int], shift: list[int], mask_padding: bool, Q: int, K: int) -> dict:
        return dict(
            HEADS=self.heads,
            HEAD_DIM=self.channels // self.heads,
            WINDOW_H=window_size[0],
            WINDOW_W=window_size[1],
            SHIFT_H=shift[0],
            SHIFT_W=shift[1],
            MASK_PADDING=mask_padding,
            PADDED=self.padded,
            MASKED=any(shift) or (mask_padding and self.padded),
            Q=Q,
            K=K,
            D=_tile(self.channels // self.heads),
            PRECISION='tf32' if self.wide and torch.backends.cuda.matmul.allow_tf32 else 'ieee',
            WIDEN=self.bfloat16 and is_interpreted(),
        )


def is_interpreted() -> bool:
    """Whether kernels are run by Triton's interpreter, on a CPU."""
    return os.environ.get('TRITON_INTERPRET') == '1'


def _tile(length: int) -> int:
    """What tiles of the tensor cores are made of: a power of two, at least 16."""
    return max(16, 1 << math.ceil(math.log2(length)))


def _rows(x: Tensor) -> Tensor:
    """A tensor whose rows are contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


@lru_cache(maxsize=64)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == 'cuda' else 1
