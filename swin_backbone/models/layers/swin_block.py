"""The Swin block of figure 3b of the paper (Liu et al. 2021, arXiv 2103.14030): W-MSA or SW-MSA, then an MLP, each with
a norm before it and a shortcut around it.

The modules here hold parameters under mmdet's names. A block gives them to a function of `backends/block.py` that
computes it. If a layer inside was replaced or has a hook, the block calls its modules one by one instead.

Layout: B batch, H W height and width of a map, C channels, T tokens, N places of a window, h heads.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Optional

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.drop import build_dropout
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...backends.block import BlockSettings, BlockWeights, draw_drop_path, swin_block
from ...backends.eager import Windows, fit_window, relative_position_bias
from ...backends.native import backend as operators
from ...backends.plan import Plan, Planner, WindowCut, run
from ...backends.triton.backend import swin_block as fused_swin_block
from ...windows.grid import Size
from .layer import CompiledLayer
from .snapshot import is_as_built, known_layer, remember_layers


@known_layer
class WindowAttention(BaseModule):
    """Multi-head self-attention with a relative position bias, inside each of many windows (W-MSA).

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

    @property
    def dropout(self) -> float:
        """The dropout rate of attention weights in the current mode: 0 in eval mode."""
        return self.attn_drop_rate if self.training else 0.0

    def position_bias(self, window_size: Size) -> Tensor:
        """The relative position bias (h, N, N) of windows of `window_size`, which is at most the table's window."""
        return relative_position_bias(self.relative_position_bias_table, window_size, self.window_size)

    def forward(self, x: Tensor, windows: Windows, window_size: Size) -> Tensor:
        """Attend inside windows: take their normalised tokens, return as many tokens."""
        qkv = self.qkv(windows.pad(x))
        bias_hNN = self.position_bias(window_size)
        return self.proj_drop(self.proj(windows.attend(qkv, bias_hNN, self.scale, self.dropout)))


@known_layer
class ShiftedWindowAttention(BaseModule):
    """Window attention on a map cut into windows that may be shifted (SW-MSA).

    Args:
        w_msa: the attention inside windows.
        cut: window, shift, and what happens to small maps and padding.
    """

    def __init__(self, w_msa: nn.Module, cut: WindowCut):
        super().__init__()
        self.cut = cut
        self.w_msa: Any = w_msa

    def forward(self, x: Tensor, windows: Windows, window_size: Size) -> Tensor:
        """Take the normalised tokens of some windows, return as many tokens."""
        return self.w_msa(x, windows, window_size)


@known_layer
class SwinBlock(CompiledLayer):
    """One block (equation 3).

    Args:
        embed_dims: C.
        num_heads: h.
        window_size: (Wh, Ww).
        shift, small_map, mask_padding: see `backends.plan.WindowCut`.
        feedforward_channels: hidden channels of the MLP.
        drop_rate: dropout after the attention's and the MLP's linear layers.
        drop_path_rate: probability with which a branch is dropped, for each sample.
        planner: decides how the stage is computed.
        attention: further arguments of `WindowAttention`.
    """

    attention_kind: type[BaseModule] = WindowAttention  # Swin V2's block overrides these three
    compute: Callable[..., Tensor] = staticmethod(swin_block)
    compute_fused: Callable[..., Tensor] = staticmethod(fused_swin_block)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: Size,
        shift: Size,
        feedforward_channels: int,
        drop_rate: float,
        drop_path_rate: float,
        act_cfg: dict,
        norm_cfg: dict,
        small_map: str,
        mask_padding: bool,
        planner: Planner,
        **attention,
    ):
        super().__init__()
        self.planner = planner
        self.norm1: Any = build_norm_layer(norm_cfg, embed_dims)[1]
        cut = WindowCut(window_size, shift, small_map, mask_padding)
        self._make_mixing(embed_dims, num_heads, cut, proj_drop_rate=drop_rate, **attention)
        self.norm2: Any = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn: Any = FFN(
            embed_dims=embed_dims,
            feedforward_channels=feedforward_channels,
            ffn_drop=drop_rate,
            act_cfg=act_cfg,
            add_identity=False,
        )
        self.drop_path: Any = build_dropout(dict(type='DropPath', drop_prob=drop_path_rate))
        remember_layers(self, self.activations)

    def _make_mixing(self, embed_dims: int, num_heads: int, cut: WindowCut, **attention) -> None:
        """Make the layer that mixes the places of a window: attention."""
        w_msa = self.attention_kind(
            embed_dims=embed_dims, num_heads=num_heads, window_size=cut.window_size, **attention
        )
        self.attn = ShiftedWindowAttention(w_msa, cut)

    @property
    def activations(self) -> tuple[nn.Module, ...]:
        """The modules that the block's function calls."""
        return (self.ffn.layers[0][1],)

    def forward(self, x_BHWC: Tensor, plan: Optional[Plan] = None) -> Tensor:
        """Run the block on a batch of maps; the output has the same shape.

        Args:
            plan: how the stage is computed in this forward; None: the block's planner decides.
        """
        plan = plan or self.planner.plan(x_BHWC, self.training)
        if not (plan.as_built or is_as_built(self)):
            return self._by_modules(x_BHWC, plan._replace(strip_tokens=None))
        if plan.compiled is not None:
            y_BHWC = self._by_operator(x_BHWC, plan, plan.compiled)
            if y_BHWC is not None:
                return y_BHWC
        windows, window_size = self._windows(x_BHWC, plan)
        weights, settings = self._weights(x_BHWC, window_size, plan), self._settings()
        compute = partial(self.compute_fused if 'norm' in plan.fused else self.compute, settings=settings)
        draws = any((settings.attn_drop, settings.proj_drop, settings.hidden_drop, settings.ffn_drop))
        return run(compute, x_BHWC, windows, weights, plan, draws, x_BHWC if plan.overwrite else None)

    def _windows(self, x_BHWC: Tensor, plan: Plan) -> tuple[list[Windows], Size]:
        return plan.windows(x_BHWC, self.attn.cut)

    def _by_operator(self, x_BHWC: Tensor, plan: Plan, dtype: torch.dtype) -> Optional[Tensor]:
        """Compute the block by the compiled operator; None if the operator does not support this block."""
        cut, settings = self.attn.cut, self._settings()
        if x_BHWC.dtype == plan.dtype:  # an earlier layer, computed by torch, returned autocast's dtype
            x_BHWC = x_BHWC.float()
        if not operators.takes_block(x_BHWC, self.attn.w_msa.qkv.weight, self.ffn.layers[0][0].weight, settings):
            return None
        H, W = x_BHWC.shape[1:3]
        window_size, shift = fit_window(H, W, cut.window_size, cut.shift, cut.small_map)
        weights = self._weights(x_BHWC, window_size, plan._replace(dtype=None))
        save = plan.strip_tokens is None and not plan.with_cp and operators.saves_block(dtype, x_BHWC.shape[3])
        way = operators.Way(dtype, settings, self.packed, window_size, shift, cut.mask_padding, save)
        by_torch = partial(self._by_autograd, settings=settings)
        return operators.block(x_BHWC, weights, way, by_torch, plan.overwrite)

    def _by_autograd(self, x_BHWC: Tensor, weights: BlockWeights, settings: BlockSettings) -> Tensor:
        """Compute whole maps in the dtype of the weights, without recomputation; this has a second derivative."""
        whole = Plan()
        windows, _ = self._windows(x_BHWC, whole)
        return run(partial(self.compute, settings=settings), x_BHWC, windows, weights, whole)

    def _weights(self, x_BHWC: Tensor, window_size: Size, plan: Plan) -> Any:
        """The weights that all strips share: linear weights in autocast's dtype, and the relative position bias."""
        attention = self.attn.w_msa
        layers = attention.qkv, attention.proj, self.ffn.layers[0][0], self.ffn.layers[1]
        tensors: list[Any] = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
        if plan.dtype is not None and 'weights' in plan.fused and not torch.compiler.is_compiling():
            tensors = self.cast_weights.get(tensors, plan.dtype)
        else:
            tensors = [plan.cast(tensor) for tensor in tensors]
        qkv_weight, qkv_bias, proj_weight, proj_bias, fc1_weight, fc1_bias, fc2_weight, fc2_bias = tensors
        rate = self.drop_path.drop_prob if self.drop_path.training else 0.0
        return BlockWeights(
            norm1_weight=self.norm1.weight,
            norm1_bias=self.norm1.bias,
            qkv_weight=qkv_weight,
            qkv_bias=qkv_bias,
            position_bias_hNN=attention.position_bias(window_size),
            proj_weight=proj_weight,
            proj_bias=proj_bias,
            norm2_weight=self.norm2.weight,
            norm2_bias=self.norm2.bias,
            fc1_weight=fc1_weight,
            fc1_bias=fc1_bias,
            fc2_weight=fc2_weight,
            fc2_bias=fc2_bias,
            drop_path_2B=draw_drop_path(rate, x_BHWC.shape[0], x_BHWC.device) if rate else None,
        )

    def _settings(self) -> BlockSettings:
        attention, ((_, activation, hidden_drop), _, ffn_drop) = self.attn.w_msa, self.ffn.layers
        rates = [drop.p if drop.training else 0.0 for drop in (attention.proj_drop, hidden_drop, ffn_drop)]
        return BlockSettings(
            scale=attention.scale,
            eps=(self.norm1.eps, self.norm2.eps),
            activation=activation,
            attn_drop=attention.dropout,
            proj_drop=rates[0],
            hidden_drop=rates[1],
            ffn_drop=rates[2],
        )

    def _by_modules(self, x_BHWC: Tensor, plan: Plan) -> Tensor:
        """Compute whole maps by calling each module inside, of whatever type."""
        windows, window_size = self._windows(x_BHWC, plan)
        compute = partial(self._compute_by_modules, window_size=window_size)
        return run(compute, x_BHWC, windows, (), plan)

    def _compute_by_modules(self, x: Tensor, windows: Windows, _weights: tuple, window_size: Size) -> Tensor:
        x = x + self._drop_path_by_module(self.attn(self.norm1(x), windows, window_size), windows)
        return x + self._drop_path_by_module(self.ffn(self.norm2(x)), windows)

    def _drop_path_by_module(self, y: Tensor, windows: Windows) -> Tensor:
        """Apply mmcv's DropPath, which draws one value for each entry of the first dimension: here an image."""
        return self.drop_path(windows.per_image(y)).reshape(y.shape)
