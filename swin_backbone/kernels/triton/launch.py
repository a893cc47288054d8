"""Launches of the attention kernels.

Layout: T tokens, C channels, L windows, h heads, N places of a window, P programs for all windows.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from .tiles import Tiles


def launch_forward(
    tiles: Tiles, qkv_T3C: Tensor, padding_3C: Tensor, bias_hNN: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the results of `attend_in_windows`."""
    from .kernels.forward import attend

    qkv_T3C = _make_rows_dense(qkv_T3C)
    out_TC = qkv_T3C.new_empty(tiles.num_tokens, tiles.channels)
    lse_LhN = qkv_T3C.new_empty(tiles.num_windows, tiles.heads, tiles.places, dtype=torch.float32)
    options = tiles.make_query_options()
    with _current_device(qkv_T3C.device):
        attend[tiles.choose_grid(options)](
            *(qkv_T3C, padding_3C.to(qkv_T3C.dtype).contiguous(), bias_hNN.float().contiguous(), out_TC, lse_LhN),
            *(qkv_T3C.stride(0), *tiles.sizes, scale),
            **tiles.make_constants(),
            **options,
        )
    return out_TC, lse_LhN


def launch_backward(
    tiles: Tiles,
    grad_TC: Tensor,
    qkv_T3C: Tensor,
    padding_3C: Tensor,
    bias_hNN: Tensor,
    out_TC: Tensor,
    lse_LhN: Tensor,
    scale: float,
    needs_padding: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `attend_in_windows_backward`."""
    from .kernels.backward import attend_backward, attend_backward_queries

    grad_TC, qkv_T3C = grad_TC.contiguous(), _make_rows_dense(qkv_T3C)
    grad_qkv_T3C = qkv_T3C.new_empty(qkv_T3C.shape)
    options, constants = tiles.make_key_options(), tiles.make_constants()
    _, num_programs, blocks = grid = tiles.choose_grid(options)
    grad_bias_PhNN = lse_LhN.new_empty(num_programs, *bias_hNN.shape)
    grad_padding_P2C = lse_LhN.new_zeros((num_programs * blocks, 2 * tiles.channels) if needs_padding else 0)
    sizes = qkv_T3C.stride(0), *tiles.sizes, scale
    padding, bias = padding_3C.to(qkv_T3C.dtype).contiguous(), bias_hNN.float().contiguous()
    tensors = grad_TC, qkv_T3C, padding, bias, lse_LhN
    delta_LhN = torch.empty_like(lse_LhN) if blocks > 1 else lse_LhN  # a single tile does not read it
    with _current_device(qkv_T3C.device):
        if blocks > 1:
            query_options = tiles.make_query_options(num_stages=1)
            attend_backward_queries[tiles.choose_grid(query_options)](
                *(*tensors, delta_LhN, out_TC, grad_qkv_T3C, *sizes), **constants, **query_options
            )
        attend_backward[grid](
            *(*tensors, delta_LhN, grad_qkv_T3C, grad_bias_PhNN, grad_padding_P2C, *sizes),
            **constants,
            NEEDS_PADDING=needs_padding,
            **options,
        )
    grad_padding_3C = qkv_T3C.new_empty(0)
    if needs_padding:  # padding is never a query
        grad_padding_3C = F.pad(grad_padding_P2C.sum(0), (tiles.channels, 0)).to(qkv_T3C.dtype)
    return grad_qkv_T3C, grad_padding_3C, grad_bias_PhNN.sum(0).to(bias_hNN.dtype)


def _current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the current device: Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == 'cuda' else nullcontext()


def _make_rows_dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
