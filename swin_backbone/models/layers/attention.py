"""Attention inside windows, W-MSA and SW-MSA (Liu et al. 2021, arXiv 2103.14030). Parameter names are mmdet's.

Layout: B batch, H W height and width of a map, C channels, L windows of all images (1 in a bias that all share), G
windows of one image, N places of a window, h heads, d channels of a head.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...compat import without_cudnn_attention
from ...modes import find_tracer
from ...replace import replaceable
from ...sizes import Size
from ..windows import EDGE_SLICES, Windows, make_edge_masks, make_position_bias

# Devices where two batched matrix products and a softmax are faster than scaled_dot_product_attention. A graph has the
# products on every device: exporters know them, and a graph cannot record the flag that `_attend_fused` sets.
MATMUL_ATTENTION_DEVICES = {'cpu'}
Edges = list[tuple[tuple[slice, slice, slice], Tensor]]  # (an entry of `EDGE_SLICES`, its mask (N, N))


class BaseAttention(nn.Module):
    """Multi-head self-attention inside windows. Subclasses set the attributes, and define both methods."""

    backend = 'auto'
    scale: float  # of q k^T
    attn_drop_rate: float
    proj: nn.Linear
    proj_drop: nn.Dropout

    def position_bias(self, window_size: Size) -> Tensor:
        """Return the relative position bias (h, N, N) of windows."""
        raise NotImplementedError

    def project(self, tokens: Tensor) -> Tensor:
        """Return query, key and value of tokens, concatenated: (..., 3C)."""
        raise NotImplementedError

    @replaceable
    def forward(self, x_BHWC: Tensor, windows: Windows) -> Tensor:
        """Return softmax(scale q k^T + bias) v inside each window (equation 4), projected: (B, H, W, C).

        Padding is zeros: its query, key and value are the biases of `project`.
        """
        B, bias_hNN = x_BHWC.shape[0], self.position_bias(windows.window_size)
        qkv_LN3C = self.project(windows.partition(x_BHWC))
        q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
        bias_LhNN = bias_hNN.to(q.dtype)[None]
        is_traced = find_tracer(x_BHWC) is not None
        edges: Edges = []
        if windows.mask_padding or is_traced:  # a graph cannot slice by the number of windows: all get a mask
            masked_G1NN = windows.make_mask(q.device)
            if masked_G1NN is not None:
                bias_LhNN = bias_LhNN.masked_fill(masked_G1NN, -torch.inf).repeat(B, 1, 1, 1)
        elif any(windows.shift):
            edges = [*zip(EDGE_SLICES, make_edge_masks(windows.window_size, windows.shift, q.device))]
        window_grid = B, *windows.count_windows()
        dropout = self.attn_drop_rate if self.training else 0.0
        if is_traced or q.device.type in MATMUL_ATTENTION_DEVICES:
            logits_LhNN = (q * self.scale) @ k.transpose(-2, -1) + bias_LhNN
            for edge, masked_NN in edges:
                # In place and outside autograd: the softmax gives a masked logit the gradient 0.
                logits_LhNN.detach().unflatten(0, window_grid)[edge].masked_fill_(masked_NN, -torch.inf)
            # The dtype is given, because autocast would choose float32. Sums of a softmax are in float32 in any dtype.
            probs_LhNN = torch.softmax(logits_LhNN, dim=-1, dtype=q.dtype)
            y_LNC = (F.dropout(probs_LhNN, dropout) @ v).transpose(1, 2).flatten(2)
        else:
            y_LNC = _attend_fused((q, k, v), bias_LhNN, self.scale, dropout, edges, window_grid)
        return self.proj_drop(self.proj(windows.reverse(y_LNC, B)))


def _attend_fused(
    qkv: tuple[Tensor, Tensor, Tensor],
    bias_LhNN: Tensor,
    scale: float,
    dropout: float,
    edges: Edges,
    window_grid: tuple[int, int, int],
) -> Tensor:
    """Return the attended tokens (L, N, C): all windows attend without a mask, those of `edges` again with masks."""

    def attend(bias: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with without_cudnn_attention():
            return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=scale).transpose(1, 2)

    y_LNhd = attend(bias_LhNN, *qkv).clone(memory_format=torch.contiguous_format)
    for edge, masked_NN in edges:
        qkv_edge = [x.unflatten(0, window_grid)[edge].flatten(0, 2) for x in qkv]
        y_edge = y_LNhd.unflatten(0, window_grid)[edge]
        y_edge.copy_(attend(bias_LhNN.masked_fill(masked_NN, -torch.inf), *qkv_edge).reshape(y_edge.shape))
    return y_LNhd.flatten(2)


class WindowAttention(BaseAttention):
    """Multi-head self-attention with a relative position bias, inside windows (W-MSA).

    Args:
        embed_dims: C.
        num_heads: h; must divide C.
        window_size: (Wh, Ww); sets the size of the relative position bias table.
        qkv_bias: whether query, key and value have a bias.
        qk_scale: the factor on q k^T; None: head_dim ** -0.5.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout after the output projection.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: Size,
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.scale = qk_scale or (embed_dims // num_heads) ** -0.5
        num_offsets = (2 * window_size[0] - 1) * (2 * window_size[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(num_offsets, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.attn_drop_rate = attn_drop_rate
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop_rate)

    def position_bias(self, window_size: Size) -> Tensor:
        """Return the relative position bias (h, N, N) of windows no larger than the table's."""
        return make_position_bias(self.relative_position_bias_table, window_size, self.window_size)

    def project(self, tokens: Tensor) -> Tensor:
        """Return query, key and value of tokens, concatenated: (..., 3C)."""
        return self.qkv(tokens)


class ShiftedWindowAttention(nn.Module):
    """A holder of window attention: mmdet names the parameters `attn.w_msa.*`. `windows` has the shift."""

    def __init__(self, w_msa: nn.Module):
        super().__init__()
        self.w_msa = w_msa

    def forward(self, x_BHWC: Tensor, windows: Windows) -> Tensor:
        """Attend inside windows: (B, H, W, C) from normalised tokens of the same shape."""
        return self.w_msa(x_BHWC, windows)
