"""The Swin block of figure 3b of the paper (Liu et al. 2021, arXiv 2103.14030).

Attention in windows (W-MSA) or in shifted windows (SW-MSA), then an MLP. Each has a norm before it and a shortcut
around it. Parameter names are mmdet's.

Layout: B batch, H W height and width of a map, C channels, N places of a window, h heads.
"""

from typing import Any, Optional

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.drop import build_dropout
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...positions import Size, relative_position_bias
from ...replace import replaceable
from ..attention import attend
from ..windows import Windows, windows_of


class BaseAttention(BaseModule):
    """Attention inside windows, by the methods `project` and `position_bias` of Swin V1 or V2."""

    backend = 'auto'

    def forward(self: Any, x_BHWC: Tensor, windows: Windows) -> Tensor:
        """Attend inside windows: (B, H, W, C) from tokens of the same shape."""
        return self.proj_drop(self.proj(attend(self, x_BHWC, windows)))


class BaseBlock(BaseModule):
    """Attention or mixing inside windows, and an MLP."""

    backend = 'auto'

    def windows(self: Any, x_BHWC: Tensor) -> Windows:
        """Return the windows of the maps."""
        return windows_of(x_BHWC, self.window_size, self.shift, self.small_map, self.mask_padding)


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
        return relative_position_bias(self.relative_position_bias_table, window_size, self.window_size)

    def project(self, tokens: Tensor) -> Tensor:
        """Return query, key and value of tokens, concatenated: (..., 3C)."""
        return self.qkv(tokens)


class ShiftedWindowAttention(BaseModule):
    """Holds window attention under mmdet's name of its parameters, `attn.w_msa`. The shift is in `windows`."""

    def __init__(self, w_msa: BaseModule):
        super().__init__()
        self.w_msa = w_msa

    def forward(self, x_BHWC: Tensor, windows: Windows) -> Tensor:
        """Attend inside windows: (B, H, W, C) from normalised tokens of the same shape."""
        return self.w_msa(x_BHWC, windows)


class SwinBlock(BaseBlock):
    """One block (equation 3).

    Args:
        embed_dims: C.
        num_heads: h.
        window_size: (Wh, Ww).
        shift: (rows, columns) of the shift; (0, 0) for none.
        feedforward_channels: hidden channels of the MLP.
        qkv_bias, qk_scale, attn_drop_rate: see `WindowAttention`.
        drop_rate: dropout after the attention's and the MLP's linear layers.
        drop_path_rate: the probability of dropping a branch, drawn for every sample.
        small_map: 'pad': a map smaller than the window is padded to the window; 'shrink': see `fit_window`.
        mask_padding: whether padding is masked: no token attends to it.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: Size,
        shift: Size,
        feedforward_channels: int,
        qkv_bias: bool,
        qk_scale: Optional[float],
        attn_drop_rate: float,
        drop_rate: float,
        drop_path_rate: float,
        act_cfg: dict[str, Any],
        norm_cfg: dict[str, Any],
        small_map: str,
        mask_padding: bool,
    ):
        super().__init__()
        self.window_size, self.shift, self.small_map, self.mask_padding = window_size, shift, small_map, mask_padding
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.attn = ShiftedWindowAttention(
            WindowAttention(embed_dims, num_heads, window_size, qkv_bias, qk_scale, attn_drop_rate, drop_rate)
        )
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn = build_mlp(embed_dims, feedforward_channels, drop_rate, act_cfg)
        self.drop_path = build_dropout(dict(type='DropPath', drop_prob=drop_path_rate))

    @replaceable
    def forward(self, x_BHWC: Tensor) -> Tensor:
        """Run the block on a batch of maps (B, H, W, C); the output has the input's shape."""
        x_BHWC = x_BHWC + self.drop_path(self.attn(self.norm1(x_BHWC), self.windows(x_BHWC)))
        x_BHWC = x_BHWC + self.drop_path(self.ffn(self.norm2(x_BHWC)))
        return x_BHWC


def build_mlp(embed_dims: int, hidden_channels: int, drop_rate: float, act_cfg: dict[str, Any]) -> FFN:
    """Return the MLP of a block, without a shortcut."""
    return FFN(embed_dims, hidden_channels, act_cfg=act_cfg, ffn_drop=drop_rate, add_identity=False)
