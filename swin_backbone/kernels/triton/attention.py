"""Custom operators of torch for the attention kernels. torch.compile and export do not look inside an operator.

Layout: T tokens, C channels, L windows, h heads, N places of a window, P programs for all windows.
"""

# ruff: noqa: UP006, UP035 - torch 2.4 infers an operator's schema from names of typing alone
from contextlib import AbstractContextManager, nullcontext
from typing import Any, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .tiles import Tiles


@torch.library.custom_op('swin_backbone::attend_in_windows', mutates_args=())
def attend_in_windows(
    qkv_T3C: Tensor,
    padding_3C: Tensor,
    bias_hNN: Tensor,
    batch: int,
    height: int,
    width: int,
    window_size: List[int],
    shift: List[int],
    mask_padding: bool,
    scale: float,
    programs: int = 0,
) -> Tuple[Tensor, Tensor]:
    """Return softmax(scale q k^T + bias) v inside every window of a batch of maps.

    Args:
        qkv_T3C: query, key and value of every token of the maps, concatenated. Query, key and value are concatenated
            heads.
        padding_3C: query, key and value of padding, for maps of no whole number of windows.
        bias_hNN: the relative position bias, read in float32.
        batch, height, width, window_size, shift, mask_padding: see `Windows`.
        programs: for the windows of a head; 0: enough to keep the device busy.

    Returns:
        The attended tokens (T, C); and (L, h, N) float32, the log2 of the softmax's denominator, for logits times
        log2(e). Windows are in row-major order.
    """
    from .kernels.forward import attend

    tiles = Tiles(qkv_T3C, bias_hNN, batch, height, width, window_size, shift, mask_padding, programs)
    qkv_T3C = _with_dense_rows(qkv_T3C)
    out_TC = qkv_T3C.new_empty(tiles.num_tokens, tiles.channels)
    lse_LhN = qkv_T3C.new_empty(tiles.num_windows, tiles.heads, tiles.places, dtype=torch.float32)
    options = tiles.forward()
    with current_device(qkv_T3C.device):
        attend[tiles.grid(options)](
            *(qkv_T3C, padding_3C.to(qkv_T3C.dtype).contiguous(), bias_hNN.float().contiguous(), out_TC, lse_LhN),
            *(qkv_T3C.stride(0), *tiles.sizes, scale),
            **tiles.constants(),
            **options,
        )
    return out_TC, lse_LhN


@attend_in_windows.register_fake
def _(qkv_T3C: Tensor, padding_3C: Tensor, bias_hNN: Tensor, *others: Any) -> Tuple[Tensor, Tensor]:
    batch, height, width, window_size, *_ = others
    rows, columns = -(-height // window_size[0]), -(-width // window_size[1])
    lse_shape = batch * rows * columns, bias_hNN.shape[0], window_size[0] * window_size[1]
    out_TC = qkv_T3C.new_empty(qkv_T3C.shape[0], qkv_T3C.shape[1] // 3)
    return out_TC, qkv_T3C.new_empty(lse_shape, dtype=torch.float32)


@torch.library.custom_op('swin_backbone::attend_in_windows_backward', mutates_args=())
def attend_in_windows_backward(
    grad_TC: Tensor,
    qkv_T3C: Tensor,
    padding_3C: Tensor,
    bias_hNN: Tensor,
    out_TC: Tensor,
    lse_LhN: Tensor,
    batch: int,
    height: int,
    width: int,
    window_size: List[int],
    shift: List[int],
    mask_padding: bool,
    scale: float,
    programs: int,
    needs_padding: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `attend_in_windows`' qkv, padding and bias.

    Without `needs_padding`, the gradient of padding is empty.
    """
    from .kernels.backward import attend_backward, attend_backward_queries

    tiles = Tiles(qkv_T3C, bias_hNN, batch, height, width, window_size, shift, mask_padding, programs)
    grad_TC, qkv_T3C = grad_TC.contiguous(), _with_dense_rows(qkv_T3C)
    grad_qkv_T3C = qkv_T3C.new_empty(qkv_T3C.shape)
    options, constants = tiles.backward(), tiles.constants()
    _, num_programs, blocks = grid = tiles.grid(options)
    grad_bias_PhNN = lse_LhN.new_empty(num_programs, *bias_hNN.shape)
    grad_padding_P2C = lse_LhN.new_empty((num_programs * blocks, 2 * tiles.channels) if needs_padding else 0)
    sizes = qkv_T3C.stride(0), *tiles.sizes, scale
    padding, bias = padding_3C.to(qkv_T3C.dtype).contiguous(), bias_hNN.float().contiguous()
    tensors = grad_TC, qkv_T3C, padding, bias, out_TC, lse_LhN, grad_qkv_T3C
    with current_device(qkv_T3C.device):
        attend_backward[grid](
            *(*tensors, grad_bias_PhNN, grad_padding_P2C, *sizes),
            **constants,
            NEEDS_PADDING=needs_padding,
            **options,
        )
        if blocks > 1:
            options = tiles.forward()
            attend_backward_queries[tiles.grid(options)](*tensors, *sizes, **constants, **options)
    grad_padding_3C = qkv_T3C.new_empty(0)
    if needs_padding:  # padding is never a query
        grad_padding_3C = F.pad(grad_padding_P2C.sum(0), (tiles.channels, 0)).to(qkv_T3C.dtype)
    return grad_qkv_T3C, grad_padding_3C, grad_bias_PhNN.sum(0).to(bias_hNN.dtype)


@attend_in_windows_backward.register_fake
def _(
    grad_TC: Tensor, qkv_T3C: Tensor, padding_3C: Tensor, bias_hNN: Tensor, *others: Any
) -> Tuple[Tensor, Tensor, Tensor]:
    *_, needs_padding = others
    grad_padding_3C = qkv_T3C.new_empty(qkv_T3C.shape[1] if needs_padding else 0)
    return qkv_T3C.new_empty(qkv_T3C.shape), grad_padding_3C, bias_hNN.new_empty(bias_hNN.shape)


def _keep_for_backward(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
    qkv_T3C, padding_3C, bias_hNN, *ctx.others = inputs
    ctx.save_for_backward(qkv_T3C, padding_3C, bias_hNN, *output)


def _backward(ctx: Any, grad_TC: Tensor, _grad_lse: Tensor) -> Tuple[Optional[Tensor], ...]:
    needs_padding = ctx.needs_input_grad[1]
    tensors = grad_TC, *ctx.saved_tensors
    grad_qkv, grad_padding, grad_bias = attend_in_windows_backward(*tensors, *ctx.others, needs_padding)
    return grad_qkv, grad_padding if needs_padding else None, grad_bias, *[None] * len(ctx.others)


attend_in_windows.register_autograd(_backward, setup_context=_keep_for_backward)


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the current device: Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == 'cuda' else nullcontext()


def _with_dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
