"""The Swin block of figure 3b of the paper (Liu et al. 2021, arXiv 2103.14030).

W-MSA or SW-MSA, then an MLP, with norms before and shortcuts around. Parameter names are mmdet's.

Layout: B batch, H W height and width of a map, C channels, N places of a window, h heads.
"""

import itertools
from functools import partial
from typing import Any, Optional

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.drop import build_dropout
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...compat import is_transformed
from ...kernels.attention import attend
from ...kernels.choose import linear_dtype
from ...kernels.native import layers as native
from ...kernels.native.availability import TINY, Stages, is_stored
from ...kernels.native.memory import made_from, why_not_weights
from ...windows.grid import Size, Windows, fit_window
from ...windows.position import relative_position_bias
from .layer import Layer, known, norm_values

CACHED_BIAS = 2**18  # numbers of the largest relative position bias in the cache, 1 MiB
# Modules with the first tensors of `native.BlockWeights`: weights and biases of the linear layers, then of the norms.
LINEARS, NORMS = ('attn.w_msa.qkv', 'attn.w_msa.proj', 'ffn.layers.0.0', 'ffn.layers.1'), ('norm1', 'norm2', 'norm3')


@known('num_heads', 'scale', 'attn_drop_rate', 'training', 'relative_position_bias_table')
class WindowAttention(BaseModule):
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

    backend = 'auto'

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: Size,
        qkv_bias: bool,
        qk_scale: Optional[float],
        attn_drop_rate: float,
        proj_drop_rate: float,
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

    def own_parameters(self) -> list[Tensor]:
        """Return the parameters outside linear layers over channels; `SwinBlock.derived_weights` depends on them."""
        return [self.relative_position_bias_table]

    def position_bias(self, window_size: Size) -> Tensor:
        """Return the relative position bias (h, N, N) of windows no larger than the table's."""
        return relative_position_bias(self.relative_position_bias_table, window_size, self.window_size)

    def forward(self, x_BHWC: Tensor, windows: Windows) -> Tensor:
        """Attend inside windows (equation 4): normalised tokens (B, H, W, C) to an equal number of tokens."""
        bias_hNN, dropout = self.position_bias(windows.window_size), self.attn_drop_rate if self.training else 0.0
        y_BHWC = attend(x_BHWC, self.project, bias_hNN, self.scale, windows, dropout, self.backend)
        z_BHWC: Tensor = self.proj_drop(self.proj(y_BHWC))
        return z_BHWC

    def project(self, tokens: Tensor) -> Tensor:
        """Return query, key and value of tokens, concatenated: (..., 3C)."""
        qkv: Tensor = self.qkv(tokens)
        return qkv


@known()
class ShiftedWindowAttention(BaseModule):
    """Window attention on a map with windows shifted or not (SW-MSA), at the place and name of mmdet's module.

    Args:
        w_msa: the attention inside windows.
    """

    def __init__(self, w_msa: BaseModule):
        super().__init__()
        self.w_msa = w_msa

    def forward(self, x_BHWC: Tensor, windows: Windows) -> Tensor:
        """Attend inside windows: normalised tokens (B, H, W, C) to an equal number of tokens."""
        y_BHWC: Tensor = self.w_msa(x_BHWC, windows)
        return y_BHWC


class SwinBlock(Layer):
    """One block (equation 3).

    Args:
        embed_dims: C.
        num_heads: h.
        window_size: (Wh, Ww).
        shift: (rows, columns) of the shift; (0, 0) for none.
        feedforward_channels: hidden channels of the MLP.
        drop_rate: dropout after the attention's and the MLP's linear layers.
        drop_path_rate: the probability of dropping a branch, drawn for every sample.
        small_map: 'pad': a map smaller than the window is padded to the window; 'shrink': see `fit_window`.
        mask_padding: whether keys of padding are masked.
        with_cp: whether a training step stores the block's input alone and recomputes the rest.
        stages: channels and blocks of each stage of the backbone; the sizes decide whether a training step stores
            values.
        attention: further arguments of `WindowAttention`.
    """

    attention_kind: type[BaseModule] = WindowAttention

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: Size,
        shift: Size,
        feedforward_channels: int,
        drop_rate: float,
        drop_path_rate: float,
        act_cfg: dict[str, Any],
        norm_cfg: dict[str, Any],
        small_map: str,
        mask_padding: bool,
        with_cp: bool = False,
        stages: Stages = TINY,
        **attention: Any,
    ):
        super().__init__()
        self.window_size, self.shift, self.stages = window_size, shift, stages
        self.small_map, self.mask_padding, self.with_cp = small_map, mask_padding, with_cp
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self._build_mixing(embed_dims, num_heads, proj_drop_rate=drop_rate, **attention)
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn = FFN(
            embed_dims=embed_dims,
            feedforward_channels=feedforward_channels,
            ffn_drop=drop_rate,
            act_cfg=act_cfg,
            add_identity=False,
        )
        self.drop_path = build_dropout(dict(type='DropPath', drop_prob=drop_path_rate))
        self.record_modules()

    def _build_mixing(self, embed_dims: int, num_heads: int, **attention: Any) -> None:
        """Build the module for mixing the places of a window: attention."""
        w_msa = self.attention_kind(
            embed_dims=embed_dims, num_heads=num_heads, window_size=self.window_size, **attention
        )
        self.attn = ShiftedWindowAttention(w_msa)

    def forward(self, x_BHWC: Tensor, recomputes: bool = False, overwrites: bool = False) -> Tensor:
        """Run the block on a batch of maps (B, H, W, C); the output has the input's shape.

        Args:
            recomputes: whether `with_cp` makes the call.
            overwrites: whether the output may take the memory of the input; without gradients.
        """
        y_BHWC = self.in_another_way(x_BHWC, recomputes, overwrites)
        if y_BHWC is not None:
            return y_BHWC
        windows = self.windows(x_BHWC)
        x_BHWC = x_BHWC + self.drop_path(self.attn(self.norm1(x_BHWC), windows))
        z_BHWC: Tensor = x_BHWC + self.drop_path(self.ffn(self.norm2(x_BHWC)))
        return z_BHWC

    def in_another_way(self, x_BHWC: Tensor, recomputes: bool, overwrites: bool) -> Optional[Tensor]:
        """Return the output of the block by the compiled library or by `with_cp`; None: plain torch computes."""
        arguments = self.for_library(x_BHWC)
        if arguments is not None:
            (weights, settings), windows, dtype = arguments, self.windows(x_BHWC), linear_dtype(x_BHWC)
            drop_path_2B = self._draw_drop_path(x_BHWC) if self.drop_path.training else None
            derived = self._cached_weights(windows.window_size)
            weights = native.BlockWeights(**{**weights, **derived}, drop_path_2B=drop_path_2B)
            stores = torch.is_grad_enabled() and not self.with_cp and is_stored(dtype, x_BHWC.shape[3], self.stages)
            return native.block(x_BHWC, weights, settings, windows, dtype, self.cache, stores, overwrites)
        if not self.with_cp or recomputes or not torch.is_grad_enabled() or is_transformed():
            return None
        y_BHWC: Tensor = checkpoint(partial(self.forward, recomputes=True), x_BHWC, use_reentrant=False)
        return y_BHWC

    def windows(self, x_BHWC: Tensor) -> Windows:
        """Return the windows of the maps."""
        H, W = (int(n) if isinstance(n, Tensor) else n for n in x_BHWC.shape[1:3])  # a tracer's sizes are tensors
        window_size, shift = self.window_size, self.shift
        if self.small_map == 'shrink':  # 'pad' reads no size: a comparison is a guard of torch.compile
            window_size, shift = fit_window(H, W, window_size, shift)
        return Windows(H, W, window_size, shift, self.mask_padding)

    def why_not_native(self) -> Optional[str]:
        """See `Layer`."""
        reason = super().why_not_native()
        if reason is not None:
            return reason
        attention, ((_, activation, hidden_drop), _, ffn_drop) = self.attn.w_msa, self.ffn.layers
        if type(activation) is not nn.GELU or activation.approximate != 'none':
            return 'The compiled library has one activation, exact GELU.'
        drops = attention.proj_drop, hidden_drop, ffn_drop
        if any(drop.p and drop.training for drop in drops) or (attention.attn_drop_rate and attention.training):
            return 'The compiled library has no dropout, and a dropout rate is above 0.'
        if self.drop_path.drop_prob >= 1 and self.drop_path.training:
            return 'The compiled library drops no branch for certain, and a drop path rate is 1.'
        with torch.no_grad():
            weights = {**self.library_arguments()[0], **self.derived_weights(self.window_size)}
        reason = why_not_weights(self.attn.w_msa.own_parameters())
        return reason or native.why_not_block(native.BlockWeights(**weights), self.window_size)

    def library_arguments(self) -> tuple[dict[str, Any], native.BlockSettings]:
        """See `Layer`."""
        linears = [self.get_submodule(name) for name in LINEARS]
        norms = [norm_values(getattr(self, name, None)) for name in NORMS]
        tensors = [one.weight for one in linears], [one.bias for one in linears], *(norm[:2] for norm in norms)
        eps = tuple(norm[2] for norm in norms if norm[2] is not None)
        weights = dict(zip(native.BlockWeights._fields, itertools.chain(*tensors)))
        return weights, native.BlockSettings(self.attn.w_msa.scale, eps)

    def _cached_weights(self, window_size: Size) -> dict[str, Any]:
        """Return `derived_weights(window_size)`; in inference, a small bias comes from the cache."""
        places, attention = window_size[0] * window_size[1], self.attn.w_msa
        if torch.is_grad_enabled() or attention.num_heads * places**2 > CACHED_BIAS:
            return self.derived_weights(window_size)
        windows = window_size, attention.window_size, getattr(attention, 'pretrained_window', None)
        derive = partial(self.derived_weights, window_size)
        return made_from(attention.own_parameters(), windows, derive, self.cache, 'derived')

    def derived_weights(self, window_size: Size) -> dict[str, Any]:
        """Compute tensors from parameters, for windows of `window_size`."""
        return {'position_bias_hNN': self.attn.w_msa.position_bias(window_size)}

    def _draw_drop_path(self, x_BHWC: Tensor) -> Optional[Tensor]:
        """Return the factors of the two branches for the images, 0 or 1 / (1 - rate): (2, B); None: 1.

        On a CPU mmcv's DropPath draws equal numbers, first for attention, then for the MLP.
        """
        rate = self.drop_path.drop_prob
        if not rate:
            return None
        return torch.rand(2, x_BHWC.shape[0], device=x_BHWC.device).add_(1 - rate).floor_().div_(1 - rate)
