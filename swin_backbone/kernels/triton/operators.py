"""Custom operators of torch for the attention kernels. torch.compile and export do not look inside an operator.

Layout: T tokens, C channels, L windows, h heads, N places of a window, P programs for all windows.
"""

# ruff: noqa: UP006, UP035 - torch 2.4 infers an operator's schema from names of typing alone
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from .availability import launch_or_fall_back
from .by_torch import attend_by_torch, attend_by_torch_backward
from .launch import launch_backward, launch_forward
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
) -> Tuple[Tensor, Tensor]:
    """Return softmax(scale q k^T + bias) v inside every window of a batch of maps.

    Args:
        qkv_T3C: query, key and value of every token of the maps, concatenated. Query, key and value are concatenated
            heads.
        padding_3C: query, key and value of padding, for maps of no whole number of windows.
        bias_hNN: the relative position bias, read in float32.
        batch, height, width, window_size, shift, mask_padding: see `Windows`.

    Returns:
        The attended tokens (T, C); and (L, h, N) float32, the log2 of the softmax's denominator, for logits times
        log2(e). Windows are in row-major order.
    """
    inputs, settings = (qkv_T3C, padding_3C, bias_hNN), (batch, height, width, window_size, shift, mask_padding)

    def by_torch() -> Tuple[Tensor, Tensor]:
        qkv, padding, bias = (x.float() for x in inputs)
        out_TC, lse_LhN = attend_by_torch(qkv, padding, bias, *settings, scale)
        return out_TC.to(qkv_T3C.dtype), lse_LhN

    return launch_or_fall_back(
        lambda tiles: launch_forward(tiles, *inputs, scale), by_torch, Tiles(qkv_T3C, bias_hNN, *settings)
    )


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
    needs_padding: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `attend_in_windows`' qkv, padding and bias.

    Without `needs_padding`, the gradient of padding is empty.
    """
    inputs, settings = (qkv_T3C, padding_3C, bias_hNN), (batch, height, width, window_size, shift, mask_padding)

    def by_torch() -> Tuple[Tensor, ...]:
        grad, qkv, padding, bias = (x.float() for x in (grad_TC, *inputs))
        grads = attend_by_torch_backward(grad, qkv, padding, bias, *settings, scale, needs_padding)
        return tuple(grad.to(x.dtype) for grad, x in zip(grads, inputs))

    def launch(tiles: Tiles) -> Tuple[Tensor, ...]:
        return launch_backward(tiles, grad_TC, *inputs, out_TC, lse_LhN, scale, needs_padding)

    grad_qkv_T3C, grad_padding_3C, grad_bias_hNN = launch_or_fall_back(
        launch, by_torch, Tiles(qkv_T3C, bias_hNN, *settings)
    )
    return grad_qkv_T3C, grad_padding_3C, grad_bias_hNN


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
