"""The Swin block of figure 3b of the paper (Liu et al. 2021, arXiv 2103.14030): W-MSA or SW-MSA, then an MLP, each with
a norm before it and a shortcut around it.

The modules here hold parameters under mmdet's names. A block gives them to a function of `backends/block.py` that
computes it. If a layer inside was replaced or has a hook, the block calls its modules one by one instead.

Layout: B batch, H W height and width of a map, C channels, T tokens, N places of a window, h heads.
"""

from typing import Any, NamedTuple, Optional

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks.drop import DropPath, build_dropout
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...backends import StageOptions, plan_stage
from ...backends.functions.block import draw_drop_path
from ...backends.functions.position import relative_position_bias
from ...backends.protocol import BlockSettings, BlockWeights, Plan, Windows
from ...backends.strips import checkpointed
from ...windows.grid import Geometry, Size, fit_window
from .layer import BackendLayer, Norm
from .snapshot import is_unmodified, known_layer, take_snapshot


class WindowCut(NamedTuple):
    """How a block cuts maps into windows."""

    window_size: Size
    shift: Size  # (rows, columns) of the shift; (0, 0) for none
    small_map: str  # 'pad': a map smaller than the window is padded to it; 'shrink': see `fit_window`
    mask_padding: bool  # keep tokens from attending to padding
    fixed_window: bool  # see `SwinBlock`

    def of(self, x_BHWC: Tensor) -> Geometry:
        """The windows of these maps."""
        B, H, W = (int(n) if isinstance(n, Tensor) else n for n in x_BHWC.shape[:3])  # a tracer's sizes are tensors
        window_size, shift = self.window_size, self.shift
        if self.small_map == 'shrink':  # under 'pad' no size is read: reading one would be a guard for torch.compile
            window_size, shift = fit_window(H, W, window_size, shift)
        window_size = self.window_size if self.fixed_window else window_size
        return Geometry(B, H, W, window_size, shift, self.mask_padding, x_BHWC.device)


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

    def position_bias(self, window_size: Size) -> Tensor:
        """The relative position bias (h, N, N) of windows of `window_size`, which is at most the table's window."""
        return relative_position_bias(self.relative_position_bias_table, window_size, self.window_size)

    def forward(self, x: Tensor, windows: Windows, window_size: Size) -> Tensor:
        """Attend inside windows: take their normalised tokens, return as many tokens."""
        qkv = self.qkv(windows.pad(x))
        bias_hNN = self.position_bias(window_size)
        y: Tensor = self.proj_drop(
            self.proj(windows.attend(qkv, bias_hNN, self.scale, self.attn_drop_rate if self.training else 0.0))
        )
        return y


@known_layer
class ShiftedWindowAttention(BaseModule):
    """Window attention on a map cut into windows that may be shifted (SW-MSA). mmdet's module of this place and name.

    Args:
        w_msa: the attention inside windows.
    """

    def __init__(self, w_msa: BaseModule):
        super().__init__()
        self.w_msa = w_msa

    def forward(self, x: Tensor, windows: Windows, window_size: Size) -> Tensor:
        """Take the normalised tokens of some windows, return as many tokens."""
        y: Tensor = self.w_msa(x, windows, window_size)
        return y


@known_layer
class SwinBlock(BackendLayer):
    """One block (equation 3).

    Args:
        embed_dims: C.
        num_heads: h.
        window_size: (Wh, Ww).
        shift, small_map, mask_padding: see `WindowCut`.
        feedforward_channels: hidden channels of the MLP.
        drop_rate: dropout after the attention's and the MLP's linear layers.
        drop_path_rate: probability with which a branch is dropped, for each sample.
        options: what is known of the stage when its backend is chosen.
        attention: further arguments of `WindowAttention`.
    """

    kind = 'v1'  # other kinds of block override these three
    attention_kind: type[BaseModule] = WindowAttention
    fixed_window = False  # whether the weights are for one window alone, which then does not shrink

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
        options: StageOptions,
        **attention: Any,
    ):
        super().__init__()
        self.options = options
        self.norm1: Norm = build_norm_layer(norm_cfg, embed_dims)[1]
        self.cut = WindowCut(window_size, shift, small_map, mask_padding, self.fixed_window)
        self._make_mixing(embed_dims, num_heads, proj_drop_rate=drop_rate, **attention)
        self.norm2: Norm = build_norm_layer(norm_cfg, embed_dims)[1]
        self.ffn = FFN(
            embed_dims=embed_dims,
            feedforward_channels=feedforward_channels,
            ffn_drop=drop_rate,
            act_cfg=act_cfg,
            add_identity=False,
        )
        self.drop_path: DropPath = build_dropout(dict(type='DropPath', drop_prob=drop_path_rate))
        take_snapshot(self, self.activations)

    def _make_mixing(self, embed_dims: int, num_heads: int, **attention: Any) -> None:
        """Make the layer that mixes the places of a window: attention."""
        self.attn = ShiftedWindowAttention(
            self.attention_kind(
                embed_dims=embed_dims, num_heads=num_heads, window_size=self.cut.window_size, **attention
            )
        )

    @property
    def activations(self) -> tuple[nn.Module, ...]:
        """The modules that the block's function calls."""
        return (self.ffn.layers[0][1],)

    @property
    def with_cp(self) -> bool:
        """Whether the block is recomputed in backward where it is not run in strips; under mmdet's name."""
        return self.options.with_cp

    def forward(self, x_BHWC: Tensor, plan: Optional[Plan] = None) -> Tensor:
        """Run the block on a batch of maps; the output has the same shape.

        Args:
            plan: how the stage is computed in this forward; None: decided for this block alone.
        """
        unmodified = (plan is not None and plan.unmodified) or is_unmodified(self)
        plan = plan or plan_stage(self.options, x_BHWC, [self.settings()] if unmodified else [])
        if not unmodified:
            return self._by_modules(x_BHWC, plan)
        geometry = self.cut.of(x_BHWC)
        weights = self._weights(x_BHWC, geometry.window_size)
        return plan.backend.block(x_BHWC, weights, self.settings(), geometry, plan, self.cache)

    def settings(self) -> BlockSettings:
        """What a backend must know besides the weights, in the current mode."""
        attention, ((_, activation, hidden_drop), _, ffn_drop) = self.attn.w_msa, self.ffn.layers
        rates = [drop.p if drop.training else 0.0 for drop in (attention.proj_drop, hidden_drop, ffn_drop)]
        return BlockSettings(
            kind=self.kind,
            weight_dtype=attention.qkv.weight.dtype,
            scale=attention.scale,
            eps=(self.norm1.eps, self.norm2.eps),
            activation=activation,
            attn_drop=attention.attn_drop_rate if attention.training else 0.0,
            proj_drop=rates[0],
            hidden_drop=rates[1],
            ffn_drop=rates[2],
            attention_channels=attention.proj.weight.shape[-1],
        )

    def _weights(self, x_BHWC: Tensor, window_size: Size) -> Any:
        attention, fc1, fc2 = self.attn.w_msa, self.ffn.layers[0][0], self.ffn.layers[1]
        rate = self.drop_path.drop_prob if self.drop_path.training else 0.0
        return BlockWeights(
            norm1_weight=self.norm1.weight,
            norm1_bias=self.norm1.bias,
            qkv_weight=attention.qkv.weight,
            qkv_bias=attention.qkv.bias,
            position_bias_hNN=attention.position_bias(window_size),
            proj_weight=attention.proj.weight,
            proj_bias=attention.proj.bias,
            norm2_weight=self.norm2.weight,
            norm2_bias=self.norm2.bias,
            fc1_weight=fc1.weight,
            fc1_bias=fc1.bias,
            fc2_weight=fc2.weight,
            fc2_bias=fc2.bias,
            drop_path_2B=draw_drop_path(rate, x_BHWC.shape[0], x_BHWC.device) if rate else None,
        )

    def _by_modules(self, x_BHWC: Tensor, plan: Plan) -> Tensor:
        """Compute whole maps by calling each module inside, of whatever type; the backend attends in windows."""
        geometry = self.cut.of(x_BHWC)
        windows = plan.backend.windows(geometry, self.kind)

        def compute(x: Tensor, windows: Windows, _weights: tuple[()]) -> Tensor:
            return self._compute_by_modules(x, windows, geometry.window_size)

        if plan.with_cp and torch.is_grad_enabled():
            return checkpointed(compute, x_BHWC, windows, ())
        return windows.write(compute(windows.read(x_BHWC), windows, ()), x_BHWC, None)

    def _compute_by_modules(self, x: Tensor, windows: Windows, window_size: Size) -> Tensor:
        x = x + self._drop_path_by_module(self.attn(self.norm1(x), windows, window_size), windows)
        return x + self._drop_path_by_module(self.ffn(self.norm2(x)), windows)

    def _drop_path_by_module(self, y: Tensor, windows: Windows) -> Tensor:
        """Apply mmcv's DropPath, which draws one value for each entry of the first dimension: here an image."""
        dropped: Tensor = self.drop_path(windows.per_image(y))
        return dropped.reshape(y.shape)
