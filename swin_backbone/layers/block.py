"""The Swin block: W-MSA or SW-MSA, then an MLP, each behind a norm and beside a shortcut.

Layout: B batch, H W height and width of a map, C channels, T tokens.
"""

from functools import partial

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.drop import build_dropout
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..ops.blocked import StripTokens, choose_strip_tokens, over_windows
from ..ops.windows import Size, Strip
from .attention import ShiftedWindowAttention


class SwinBlock(BaseModule):
    """One block of figure 3b of the paper (equation 3).

    Args:
        embed_dims: C.
        feedforward_channels: hidden channels of the MLP.
        drop_rate: dropout after the attention's and the MLP's linear layers.
        drop_path_rate: probability with which a branch is dropped, for each sample.
        with_cp: recompute the block in backward instead of keeping what is inside (activation checkpointing).
        strip_tokens: see `SwinBackbone`.
        attention: further arguments of `ShiftedWindowAttention`.
    """

    def __init__(
        self,
        embed_dims: int,
        feedforward_channels: int,
        drop_rate: float,
        drop_path_rate: float,
        act_cfg: dict,
        norm_cfg: dict,
        with_cp: bool,
        strip_tokens: StripTokens,
        **attention,
    ):
        super().__init__()
        self.with_cp = with_cp
        self.strip_tokens = strip_tokens
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.attn = ShiftedWindowAttention(embed_dims=embed_dims, proj_drop_rate=drop_rate, **attention)
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn = FFN(
            embed_dims=embed_dims,
            feedforward_channels=feedforward_channels,
            ffn_drop=drop_rate,
            act_cfg=act_cfg,
            add_identity=False,
        )
        self.drop_path = build_dropout(dict(type='DropPath', drop_prob=drop_path_rate))

    def forward(self, x_BHWC: Tensor) -> Tensor:
        """A batch of maps to one of the same shape."""
        needs_grad = torch.is_grad_enabled() and (
            x_BHWC.requires_grad or any(parameter.requires_grad for parameter in self.parameters())
        )
        if self.with_cp and needs_grad:
            return checkpoint(self._forward, x_BHWC, needs_grad, use_reentrant=False)
        return self._forward(x_BHWC, needs_grad)

    def _forward(self, x_BHWC: Tensor, needs_grad: bool) -> Tensor:
        grid, window_size = self.attn.windows_of(x_BHWC)
        # Dropout in a strip would be drawn anew, and drop path is drawn by sample: strips are for eval.
        strip_tokens = choose_strip_tokens(self.strip_tokens, x_BHWC, grid, needs_grad or self.training)
        return over_windows(partial(self._forward_tokens, window_size=window_size), x_BHWC, grid, strip_tokens)

    def _forward_tokens(self, x: Tensor, strip: Strip, window_size: Size) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), strip, window_size))
        return x + self.drop_path(self.ffn(self.norm2(x)))
