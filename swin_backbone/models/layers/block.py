"""The Swin block of figure 3b of the paper (Liu et al. 2021, arXiv 2103.14030), and the parts of all kinds of blocks.

Attention in windows (W-MSA) or in shifted windows (SW-MSA), then an MLP. Each has a norm before it and a shortcut
around it. Parameter names are mmdet's.

Layout: B batch, H W height and width of a map, C channels.
"""

from collections import OrderedDict
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ...replace import replaceable
from ...sizes import Size
from ..arguments import build_activation, build_norm
from ..windows import Windows, fit_window
from .attention import ShiftedWindowAttention, WindowAttention


def build_mlp(embed_dims: int, hidden_channels: int, act_cfg: dict[str, Any], drop_rate: float = 0.0) -> nn.Sequential:
    """Return two linear layers with an activation between them, and dropout after each; named as in mmcv's `FFN`."""
    first = nn.Sequential(nn.Linear(embed_dims, hidden_channels), build_activation(act_cfg), nn.Dropout(drop_rate))
    second = nn.Linear(hidden_channels, embed_dims), nn.Dropout(drop_rate)
    return nn.Sequential(OrderedDict(layers=nn.Sequential(first, *second)))


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016, arXiv 1603.09382), with the numbers of mmcv's `DropPath`.

    In training, the samples of a batch become zeros with probability `drop_prob`, and the others are scaled. A random
    number is drawn for each sample, in the dtype and on the device of the input.
    """

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`, whose first dimension is the batch."""
        if not self.training or self.drop_prob == 0:
            return x
        keep_prob = 1 - self.drop_prob
        shape = x.shape[0], *(1,) * (x.ndim - 1)
        is_kept = (torch.rand(shape, dtype=x.dtype, device=x.device) + keep_prob).floor()  # 1 or 0 for each sample
        return x / keep_prob * is_kept

    def extra_repr(self) -> str:
        return f'drop_prob={self.drop_prob}'


class BaseBlock(nn.Module):
    """Attention or mixing inside windows, and an MLP. For the arguments see `SwinBlock`."""

    backend = 'auto'
    with_cp = False  # whether a training step stores the block's input alone, and recomputes the rest in backward

    def __init__(self, window_size: Size, shift: Size, small_map: str, mask_padding: bool = False):
        super().__init__()
        self.window_size, self.shift, self.small_map, self.mask_padding = window_size, shift, small_map, mask_padding

    def windows(self, x_BHWC: Tensor) -> Windows:
        """Return the windows of the maps."""
        H, W = (int(n) if isinstance(n, Tensor) else n for n in x_BHWC.shape[1:3])  # a tracer's sizes are tensors
        (Wh, Ww), (down, right) = self.window_size, self.shift  # tuples for `cached_table`: a user may set lists
        if self.small_map == 'shrink':  # 'pad' compares no sizes: a comparison is a guard of torch.compile
            (Wh, Ww), (down, right) = fit_window(H, W, (Wh, Ww), (down, right))
        return Windows(H, W, (Wh, Ww), (down, right), self.mask_padding)


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
        super().__init__(window_size, shift, small_map, mask_padding)
        self.norm1 = build_norm(norm_cfg, embed_dims)
        self.attn = ShiftedWindowAttention(
            WindowAttention(embed_dims, num_heads, window_size, qkv_bias, qk_scale, attn_drop_rate, drop_rate)
        )
        self.norm2 = build_norm(norm_cfg, embed_dims)
        self.ffn = build_mlp(embed_dims, feedforward_channels, act_cfg, drop_rate)
        self.drop_path = DropPath(drop_path_rate)

    @replaceable
    def forward(self, x_BHWC: Tensor) -> Tensor:
        """Run the block on a batch of maps (B, H, W, C); the output has the input's shape."""
        x_BHWC = x_BHWC + self.drop_path(self.attn(self.norm1(x_BHWC), self.windows(x_BHWC)))
        x_BHWC = x_BHWC + self.drop_path(self.ffn(self.norm2(x_BHWC)))
        return x_BHWC
