"""The Swin block: W-MSA or SW-MSA, then an MLP, each behind a norm and beside a shortcut.

Layout: B batch, H W height and width of a map, C channels, T tokens.
"""

from functools import partial
from typing import Callable, Union

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.drop import build_dropout
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..ops.autocast import cast_to_autocast
from ..ops.block import BlockSettings, BlockWeights, draw_drop_path, swin_block, swin_block_backward
from ..ops.blocked import Computation, StripTokens, choose_strips, in_strips
from ..ops.fused import FusedWindows
from ..ops.traced import TracedWindows
from ..ops.windows import Size, Strip, WindowGrid
from .attention import ShiftedWindowAttention, WindowAttention
from .published import is_as_published


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

    # What Swin V2's block has others of.
    window_msa = WindowAttention
    known_layers = (WindowAttention, ShiftedWindowAttention)
    compute = staticmethod(swin_block)
    compute_backward = staticmethod(swin_block_backward)

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
        self.attn = ShiftedWindowAttention(
            embed_dims=embed_dims, proj_drop_rate=drop_rate, window_msa=self.window_msa, **attention
        )
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn = FFN(
            embed_dims=embed_dims,
            feedforward_channels=feedforward_channels,
            ffn_drop=drop_rate,
            act_cfg=act_cfg,
            add_identity=False,
        )
        self.drop_path = build_dropout(dict(type='DropPath', drop_prob=drop_path_rate))

    def forward(self, x_BHWC: Tensor, overwrite: bool = False) -> Tensor:
        """A batch of maps to one of the same shape, which without gradients may `overwrite` it."""
        grid, window_size = self.attn.windows_of(x_BHWC, in_strips=isinstance(self.strip_tokens, int))
        activation = self.ffn.layers[0][1]
        if not is_as_published(self, *self.known_layers, called=(activation,)):
            return self._whole(partial(self._by_modules, window_size=window_size), x_BHWC, grid.whole())
        settings, weights = self._settings(), self._weights(x_BHWC, window_size)
        strips = None
        if isinstance(grid, WindowGrid):
            strips = choose_strips(self.strip_tokens, x_BHWC, grid, recompute=self.with_cp)
        if strips is None:
            return self._whole(self.compute, x_BHWC, grid.whole(), weights, settings)
        computation = Computation(
            partial(self.compute, settings=settings), partial(self.compute_backward, settings=settings), settings.draws
        )
        return in_strips(computation, x_BHWC, weights, strips, overwrite)

    def _whole(
        self, compute: Callable[..., Tensor], x_BHWC: Tensor, windows: Union[Strip, FusedWindows, TracedWindows], *args
    ) -> Tensor:
        tokens = x_BHWC if isinstance(windows, TracedWindows) else x_BHWC.flatten(0, 2)
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(compute, tokens, windows, *args, use_reentrant=False).view_as(x_BHWC)
        return compute(tokens, windows, *args).view_as(x_BHWC)

    def _settings(self) -> BlockSettings:
        attention, ((_, activation, hidden_drop), _, ffn_drop) = self.attn.w_msa, self.ffn.layers
        return BlockSettings(
            attention.num_heads,
            attention.scale,
            (self.norm1.eps, self.norm2.eps),
            activation,
            attention.dropout,
            *(drop.p if drop.training else 0.0 for drop in (attention.proj_drop, hidden_drop, ffn_drop)),
            attention.attention_backend,
        )

    def _weights(self, x_BHWC: Tensor, window_size: Size) -> BlockWeights:
        """What all strips share, made once: linear weights in autocast's dtype, the bias table looked up."""
        attention, fc1, fc2, cast = self.attn.w_msa, self.ffn.layers[0][0], self.ffn.layers[1], cast_to_autocast
        rate = self.drop_path.drop_prob if self.drop_path.training else 0.0
        return BlockWeights(
            self.norm1.weight,
            self.norm1.bias,
            cast(attention.qkv.weight),
            cast(attention.qkv_bias),
            cast(attention.position_bias(window_size)),
            cast(attention.proj.weight),
            cast(attention.proj.bias),
            self.norm2.weight,
            self.norm2.bias,
            cast(fc1.weight),
            cast(fc1.bias),
            cast(fc2.weight),
            cast(fc2.bias),
            draw_drop_path(rate, x_BHWC.shape[0], x_BHWC.device) if rate else None,
        )

    def _by_modules(self, x_TC: Tensor, strip: Strip, window_size: Size) -> Tensor:
        y_TC = self.attn(self.norm1(x_TC), strip, window_size)
        x_TC = x_TC + self._drop_path_by_module(y_TC, strip)
        return x_TC + self._drop_path_by_module(self.ffn(self.norm2(x_TC)), strip)

    def _drop_path_by_module(self, y_TC: Tensor, strip: Strip) -> Tensor:
        """mmcv's module, which draws by the first dimension: images, not tokens."""
        return self.drop_path(strip.per_image(y_TC)).reshape(y_TC.shape)
