"""The kernels' results by torch operations: what the kernels are compared with, and what computes if a launch fails.

Layout: T tokens, L windows, C channels, h heads, N places of a window, d channels of a head.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ...models.windows import Windows


def attend_by_torch(qkv_T3C: Tensor, padding_3C: Tensor, bias_hNN: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    """Return the results of `attend_in_windows`, which has the same arguments, with gradients."""
    windows, _, _, v, logits_LhNN, _ = _prepare(qkv_T3C, padding_3C, bias_hNN, *settings)
    y_LhNd = logits_LhNN.softmax(-1) @ v
    out_TC = windows.reverse(y_LhNd.transpose(1, 2).flatten(2), settings[0]).flatten(0, 2)
    return out_TC, logits_LhNN.logsumexp(-1) / math.log(2)


def attend_by_torch_backward(
    grad_TC: Tensor, qkv_T3C: Tensor, padding_3C: Tensor, bias_hNN: Tensor, *settings: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `attend_in_windows_backward`, which has the same arguments but for output and log-sum-exp.

    An operator's backward pass has no autograd.
    """
    batch, height, width, *_, scale, needs_padding = settings
    windows, q, k, v, logits_LhNN, is_token_LN1 = _prepare(qkv_T3C, padding_3C, bias_hNN, *settings[:-1])
    grad_LNC = windows.partition(grad_TC.view(batch, height, width, -1))
    grad_LhNd, weights_LhNN = grad_LNC.unflatten(-1, (len(bias_hNN), -1)).transpose(1, 2), logits_LhNN.softmax(-1)
    grad_weights_LhNN = grad_LhNd @ v.transpose(-2, -1)
    delta_LhN1 = (weights_LhNN * grad_weights_LhNN).sum(-1, keepdim=True)
    grad_logits_LhNN = weights_LhNN * (grad_weights_LhNN - delta_LhN1)
    grad_q, grad_k = grad_logits_LhNN @ k * scale, grad_logits_LhNN.transpose(-2, -1) @ q * scale
    grads = torch.stack([grad_q, grad_k, weights_LhNN.transpose(-2, -1) @ grad_LhNd])
    grad_LN3C = grads.permute(1, 3, 0, 2, 4).flatten(2)
    grad_padding_3C = grad_LN3C.masked_fill(is_token_LN1, 0).sum((0, 1)) if needs_padding else qkv_T3C.new_empty(0)
    return windows.reverse(grad_LN3C, batch).flatten(0, 2), grad_padding_3C, grad_logits_LhNN.sum(0)


def _prepare(
    qkv_T3C: Tensor,
    padding_3C: Tensor,
    bias_hNN: Tensor,
    batch: int,
    height: int,
    width: int,
    window_size: list[int],
    shift: list[int],
    mask_padding: bool,
    scale: float,
) -> tuple[Windows, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the windows, their q, k and v (L, h, N, d), logits (L, h, N, N) and whether a place has a token (L, N, 1).

    For the arguments see `attend_in_windows`.
    """
    windows = Windows(height, width, (window_size[0], window_size[1]), (shift[0], shift[1]), mask_padding)
    flagged_TC = torch.cat([torch.ones_like(qkv_T3C[:, :1]), qkv_T3C], dim=1)
    flagged_LNC = windows.partition(flagged_TC.view(batch, height, width, -1))  # the flag is 1, and 0 at padding
    is_token_LN1 = flagged_LNC[..., :1] > 0
    qkv_LN3C = torch.where(is_token_LN1, flagged_LNC[..., 1:], padding_3C)
    q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
    logits_LhNN, masked_G1NN = (q * scale) @ k.transpose(-2, -1) + bias_hNN, windows.make_mask(q.device)
    if masked_G1NN is not None:
        logits_LhNN = logits_LhNN.masked_fill(masked_G1NN.repeat(batch, 1, 1, 1), -torch.inf)
    return windows, q, k, v, logits_LhNN, is_token_LN1
