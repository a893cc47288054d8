"""Attention inside windows: the one function, and its choice of a way to compute it.

Layout: L windows, h heads, N places of a window, d channels of a head.
"""

from collections.abc import Sequence
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .windows import Run, Size, bounded_cache


def attend_in_windows(
    q_LhNd: Tensor,
    k_LhNd: Tensor,
    v_LhNd: Tensor,
    bias_hNN: Tensor,
    runs: Sequence[Run],
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax(scale q k^T + bias) v inside each window (Liu et al. 2021, equation 4): (L, N, h*d).

    Args:
        bias_hNN: the relative position bias.
        runs: the kinds of the L windows, in their order; a masked pair gets no weight at all.
        dropout: probability with which an attention weight is dropped.
    """
    bias_hNN = bias_hNN.to(q_LhNd.dtype)
    fused = q_LhNd.device.type != 'cpu' or not (torch.is_grad_enabled() and bias_hNN.requires_grad)
    attend = F.scaled_dot_product_attention if fused else _attend
    counts = [run.count for run in runs]
    parts = []
    for run, q, k, v in zip(runs, q_LhNd.split(counts), k_LhNd.split(counts), v_LhNd.split(counts)):
        bias = bias_hNN if run.mask_NN is None else bias_hNN.masked_fill(~run.mask_NN, -torch.inf)
        parts.append(attend(q, k, v, attn_mask=bias[None], dropout_p=dropout, scale=scale).transpose(1, 2))
    x_LNhd = parts[0] if len(parts) == 1 else torch.cat(parts)
    return x_LNhd.flatten(2)


def _attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, dropout_p: float, scale: float) -> Tensor:
    """What scaled_dot_product_attention computes, in the dtype of q.

    On a CPU torch has no fused kernel with a gradient for the mask, and its fallback turns half precision into
    float32 first; so would autocast at the softmax, which sums in float32 anyway.
    """
    with torch.autocast(q.device.type, enabled=False):
        weights = torch.softmax((q * scale) @ k.transpose(-2, -1) + attn_mask, dim=-1)
        return F.dropout(weights, dropout_p) @ v


@bounded_cache
def relative_position_index(window_size: Size, table_window: Size, device: torch.device) -> Tensor:
    """For each pair of places (query, key) of a window its row in the bias table: (N*N,).

    The table of `table_window` holds every offset from (1 - Wh, 1 - Ww) to (Wh - 1, Ww - 1); a smaller
    `window_size` uses the table's centre.
    """
    table_height, table_width = table_window
    y = torch.arange(window_size[0], device=device)
    x = torch.arange(window_size[1], device=device)
    dy = y[:, None] - y + table_height - 1
    dx = x[:, None] - x + table_width - 1
    # query row, query column, key row, key column
    return (dy[:, None, :, None] * (2 * table_width - 1) + dx[None, :, None, :]).flatten()


def relative_position_bias(table_Rh: Tensor, window_size: Size, table_window: Optional[Size] = None) -> Tensor:
    """The bias (h, N, N) of a window, from a table ((2Wh-1)*(2Ww-1), h) made for windows of `table_window`."""
    index = relative_position_index(window_size, table_window or window_size, table_Rh.device)
    N = window_size[0] * window_size[1]
    return table_Rh.t().index_select(1, index).view(-1, N, N)
