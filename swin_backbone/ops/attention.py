"""Attention inside windows: the one function, and its choice of a way to compute it.

Layout: T tokens, L windows, h heads, N places of a window, d channels of a head, C = h*d.
"""

from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from . import reference
from .autocast import without_autocast
from .dropout import draw_keep
from .fused import FusedWindows
from .sums import GradientSums
from .traced import TracedWindows
from .windows import Run, Size, Strip, bounded_cache


def attend_in_windows(
    qkv_T3C: Tensor,
    strip: Strip,
    bias_hNN: Tensor,
    num_heads: int,
    scale: float,
    dropout: float = 0.0,
    backend: str = 'auto',
) -> Tensor:
    """Softmax(scale q k^T + bias) v inside each window (Liu et al. 2021, equation 4): (T, C).

    Args:
        qkv_T3C: query, key and value of each token of the strip, one behind the other, each with its heads one
            behind the other; and, if the strip is padded, behind them those of padding.
        strip: the windows, of which a masked pair gets no weight at all.
        bias_hNN: the relative position bias.
        dropout: probability with which an attention weight is dropped.
        backend: one of `backend.ATTENTION_BACKENDS`. That of the Triton kernel is chosen with the windows: it goes by
            `FusedWindows`; and the reference by maps, `TracedWindows`.
    """
    if isinstance(strip, FusedWindows):
        return strip.attend(qkv_T3C, bias_hNN, scale)
    if backend == 'reference':
        return reference.attend_in_shifted_windows(
            qkv_T3C, bias_hNN, scale, strip.size, strip.window_size, strip.shift, strip.mask_padding
        )
    qkv_3LhNd = _split_heads(strip.to_windows(qkv_T3C), num_heads)
    if isinstance(strip, TracedWindows):
        # One expression over all windows, which the compiler fuses with the mask's own.
        return strip.to_tokens(_join_heads(_attend(*qkv_3LhNd, _bias_of(strip.runs[0], bias_hNN), dropout, scale)))
    attend = F.scaled_dot_product_attention
    if qkv_T3C.device.type == 'cpu' and backend != 'sdpa':
        if not (torch.is_grad_enabled() and (qkv_T3C.requires_grad or bias_hNN.requires_grad)):
            x_LhNd, _, _ = _attend_in_place(qkv_3LhNd.contiguous(), strip, bias_hNN, scale, dropout)
            return strip.to_tokens(_join_heads(x_LhNd))
        attend = _attend
    counts = [run.count for run in strip.runs]
    parts = []
    for run, q, k, v in zip(strip.runs, *(x_LhNd.split(counts) for x_LhNd in qkv_3LhNd)):
        bias = _bias_of(run, bias_hNN)
        parts.append(attend(q, k, v, attn_mask=bias[None], dropout_p=dropout, scale=scale))
    return strip.to_tokens(_join_heads(parts[0] if len(parts) == 1 else torch.cat(parts)))


def attend_in_windows_vjp(
    qkv_T3C: Tensor,
    strip: Strip,
    bias_hNN: Tensor,
    num_heads: int,
    scale: float,
    dropout: float,
    sums: GradientSums,
    backend: str = 'auto',
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """`attend_in_windows`, and its gradient; that of the bias is added to `sums` as 'position_bias_hNN'."""
    if qkv_T3C.device.type != 'cpu' or backend == 'sdpa':
        return _attend_vjp_by_autograd(qkv_T3C, strip, bias_hNN, num_heads, scale, dropout, sums, backend)
    qkv_3LhNd = _split_heads(strip.to_windows(qkv_T3C), num_heads).contiguous()
    x_LhNd, weights_LhNN, keep_LhNN = _attend_in_place(qkv_3LhNd, strip, bias_hNN, scale, dropout)

    def vjp(grad_TC: Tensor) -> Tensor:
        grad_LhNd = _split_heads(strip.to_tokens_backward(grad_TC), num_heads, 1)[0]
        q, k, v, grad, weights = (x.flatten(0, 1) for x in (*qkv_3LhNd, grad_LhNd, weights_LhNN))
        grad_qkv_3LhNd = torch.empty_like(qkv_3LhNd)
        grad_q, grad_k, grad_v = (x.flatten(0, 1) for x in grad_qkv_3LhNd)
        dropped = weights if keep_LhNN is None else weights * keep_LhNN.flatten(0, 1)
        torch.bmm(dropped.transpose(1, 2), grad, out=grad_v)
        grad_weights = torch.bmm(grad, v.transpose(1, 2))
        if keep_LhNN is not None:
            grad_weights *= keep_LhNN.flatten(0, 1)
        grad_logits = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        if 'position_bias_hNN' in sums.wanted:
            sums.add('position_bias_hNN', grad_logits.view_as(weights_LhNN).sum(0))
        torch.bmm(grad_logits, k, out=grad_q).mul_(scale)
        torch.bmm(grad_logits.transpose(1, 2), q, out=grad_k)  # q is scaled already
        return strip.to_windows_backward(grad_qkv_3LhNd.permute(1, 3, 0, 2, 4).flatten(2))

    return strip.to_tokens(_join_heads(x_LhNd)), vjp


def _attend_in_place(
    qkv_3LhNd: Tensor, strip: Strip, bias_hNN: Tensor, scale: float, dropout: float
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """On a CPU without autograd: attended values (L, h, N, d), weights (L, h, N, N) and what dropout kept of them.

    q is scaled in place. torch's fused kernel is slower than this on windows so small.
    """
    q, k, v = (x.flatten(0, 1) for x in qkv_3LhNd)
    L, h, N = qkv_3LhNd.shape[1:4]
    logits_LhNN = torch.bmm(q.mul_(scale), k.transpose(1, 2)).view(L, h, N, N)
    for run, part in zip(strip.runs, logits_LhNN.split([run.count for run in strip.runs])):
        part += _bias_of(run, bias_hNN)
    with without_autocast('cpu'):  # which would make half precision float32; the sum is float32 anyway
        weights_LhNN = torch.softmax(logits_LhNN, dim=-1)
    keep_LhNN = draw_keep(torch.empty_like(weights_LhNN), dropout) if dropout else None
    dropped = weights_LhNN if keep_LhNN is None else weights_LhNN * keep_LhNN
    return torch.bmm(dropped.flatten(0, 1), v).view(L, h, N, -1), weights_LhNN, keep_LhNN


def _attend_vjp_by_autograd(qkv_T3C, strip, bias_hNN, num_heads, scale, dropout, sums, backend):
    with torch.enable_grad():
        qkv_T3C, bias_hNN = qkv_T3C.detach().requires_grad_(), bias_hNN.detach().requires_grad_()
        x_TC = attend_in_windows(qkv_T3C, strip, bias_hNN, num_heads, scale, dropout, backend)

    def vjp(grad_TC: Tensor) -> Tensor:
        grad_qkv, grad_bias = torch.autograd.grad(x_TC, (qkv_T3C, bias_hNN), grad_TC)
        sums.add('position_bias_hNN', grad_bias)
        return grad_qkv

    return x_TC.detach(), vjp


def _attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, dropout_p: float, scale: float) -> Tensor:
    """What scaled_dot_product_attention computes, in the dtype of q.

    On a CPU torch's fused kernel has no gradient for the mask: its fallback turns half precision into float32
    first. So would autocast at the softmax, which sums in float32 anyway.
    """
    with without_autocast(q.device.type):
        weights = torch.softmax((q * scale) @ k.transpose(-2, -1) + attn_mask, dim=-1)
        return F.dropout(weights, dropout_p) @ v


def _bias_of(run: Run, bias_hNN: Tensor) -> Tensor:
    return bias_hNN if run.mask_NN is None else bias_hNN.masked_fill(~run.mask_NN, -torch.inf)


def _split_heads(x_LNC: Tensor, num_heads: int, parts: int = 3) -> Tensor:
    """(L, N, parts*h*d) to (parts, L, h, N, d), a view."""
    return x_LNC.unflatten(-1, (parts, num_heads, -1)).permute(2, 0, 3, 1, 4)


def _join_heads(x: Tensor) -> Tensor:
    """(L, h, N, d) to (L, N, h*d)."""
    return x.transpose(1, 2).flatten(2)


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
