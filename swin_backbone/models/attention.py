"""Attention inside the windows of maps.

Layout: B batch, H W height and width of a map, T tokens, C channels, L windows of all images, N places of a window,
h heads, d channels of a head.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compat import without_cudnn_attention
from ..modes import recorder_of
from ..replace import replaceable
from .windows import Windows


@replaceable
def attend(attention: Any, x_BHWC: Tensor, windows: Windows) -> Tensor:
    """Return softmax(scale q k^T + bias) v inside each window (Liu et al. 2021, equation 4): (B, H, W, C).

    Args:
        attention: `WindowAttention` or `WindowAttentionV2`; `project` makes query, key and value, concatenated.
        x_BHWC: tokens. Padding is zeros, so `project` gives padding nothing but its biases.
    """
    # In a graph all windows get a mask, because `edges` depends on the number of windows. Else only edge windows do.
    mask_all = windows.mask_padding or recorder_of(x_BHWC) is not None
    q, k, v, bias_LhNN = _project_windows(attention, x_BHWC, windows, mask_all)
    edges = [] if mask_all else windows.edges(q.device)
    dropout = attention.attn_drop_rate if attention.training else 0.0
    grid = x_BHWC.shape[0], *windows.counts()
    if takes_fused_attention(q):
        y_LNC = _attend_fused([q, k, v], bias_LhNN, attention.scale, dropout, edges, grid)
    else:
        logits_LhNN = (q * attention.scale) @ k.transpose(-2, -1) + bias_LhNN
        for rows, columns, apart_NN in edges:
            # Outside autograd: the softmax gives a masked logit a gradient of 0 anyway.
            logits_LhNN.detach().unflatten(0, grid)[:, rows, columns].masked_fill_(apart_NN, -torch.inf)
        # Autocast computes a softmax in float32 unless the dtype is given; sums are in float32 anyway.
        weights_LhNN = torch.softmax(logits_LhNN, dim=-1, dtype=q.dtype)
        y_LNC = (F.dropout(weights_LhNN, dropout) @ v).transpose(1, 2).flatten(2)
    return windows.reverse(y_LNC, x_BHWC.shape[0])


def takes_fused_attention(q: Tensor) -> bool:
    """Return whether to call torch's scaled_dot_product_attention. On a CPU, two batched products take less time."""
    return q.device.type != 'cpu' and recorder_of(q) is None


def attention_weights(attention: Any, x_BHWC: Tensor, windows: Windows) -> Tensor:
    """Return the attention weights of `attend`, (L, h, N, N): rows sum to 1."""
    q, k, _, bias_LhNN = _project_windows(attention, x_BHWC, windows, mask_all=True)
    return torch.softmax((q * attention.scale) @ k.transpose(-2, -1) + bias_LhNN, dim=-1, dtype=q.dtype)


def _project_windows(
    attention: Any, x_BHWC: Tensor, windows: Windows, mask_all: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return query, key and value, three times (L, h, N, d), and the bias, (1, h, N, N).

    With `mask_all` each window has a bias of its own, (L, h, N, N), with its mask.
    """
    bias_hNN = attention.position_bias(windows.window_size)
    qkv_LN3C = attention.project(windows.partition(x_BHWC))
    q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
    bias_LhNN, mask_L1NN = bias_hNN.to(q.dtype)[None], windows.mask(q.device) if mask_all else None
    if mask_L1NN is not None:
        bias_LhNN = bias_LhNN.masked_fill(~mask_L1NN, -torch.inf).repeat(x_BHWC.shape[0], 1, 1, 1)
    return q, k, v, bias_LhNN


def _attend_fused(
    qkv: list[Tensor],
    bias_LhNN: Tensor,
    scale: float,
    dropout: float,
    edges: list[tuple[slice, slice, Tensor]],
    grid: tuple[int, ...],
) -> Tensor:
    """Return the attended tokens of windows, (L, N, C). Windows at the edges attend a second time, with a mask."""

    def attend_all(bias: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with without_cudnn_attention():
            return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=scale).transpose(1, 2)

    y_LNhd = attend_all(bias_LhNN, *qkv).clone(memory_format=torch.contiguous_format)
    for rows, columns, apart_NN in edges:
        qkv_edge = [x.unflatten(0, grid)[:, rows, columns].flatten(0, 2) for x in qkv]
        y_edge = y_LNhd.unflatten(0, grid)[:, rows, columns]
        y_edge.copy_(attend_all(bias_LhNN.masked_fill(apart_NN, -torch.inf), *qkv_edge).reshape(y_edge.shape))
    return y_LNhd.flatten(2)


def cosine_scale(logit_scale_h11: Tensor) -> Tensor:
    """Return the factors on cosines, exp(logit_scale), at most 100: (h,), in float32 at least."""
    scale_h = logit_scale_h11.flatten()
    # torch.compile of dynamic sizes makes a global float a symbol, which no checkpointed block can take (torch 2.13).
    return scale_h.to(_wide_dtype(scale_h)).clamp(max=math.log(100)).exp()


def normalise_qk(qkv_T3C: Tensor, scale_h: Tensor) -> Tensor:
    """Return queries of length scale, keys of length 1 and unchanged values: (..., 3C), in the input's dtype.

    Lengths are computed in float32 at least: no square overflows. A vector shorter than 1e-12, for example a key of
    padding, has no direction. The result for a short vector is 0, without gradient.
    """
    qkv_T3hd, dtype = qkv_T3C.unflatten(-1, (3, len(scale_h), -1)), _wide_dtype(qkv_T3C)
    qk_T2hd = qkv_T3hd[..., :2, :, :]
    lengths_T2h = torch.linalg.vector_norm(qk_T2hd, dim=-1, dtype=dtype)
    is_short_T2h = lengths_T2h <= 1e-12  # as torch.nn.functional.normalize; no global float, see `cosine_scale`
    # The second derivative of the length of a zero vector is NaN, even if no result depends on the length. A traced
    # graph serves grad mode and no_grad.
    if torch.is_grad_enabled() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        qk_T2hd = qk_T2hd.masked_fill(is_short_T2h[..., None], 1.0)
        lengths_T2h = torch.linalg.vector_norm(qk_T2hd, dim=-1, dtype=dtype)
    targets_2h = torch.stack([scale_h, torch.ones_like(scale_h)]).to(dtype)
    factors_T2h = (targets_2h / lengths_T2h).masked_fill(is_short_T2h, 0.0)
    factors_T3h1 = torch.cat([factors_T2h, torch.ones_like(factors_T2h[..., :1, :])], dim=-2)[..., None]
    normalised_T3hd: Tensor = (qkv_T3hd * factors_T3h1).to(qkv_T3C.dtype)
    return normalised_T3hd.flatten(-3)


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
