"""The Swin V2 block of figure 1 of the paper (Liu et al. 2022, arXiv 2111.09883): scaled cosine attention with a
continuous position bias, and norms after attention and MLP.

Layout: B batch, H W height and width of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

import math
from typing import Any, Optional, cast

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...backends.functions.autocast import without_autocast
from ...backends.functions.cosine import cosine_scale, normalise_qk
from ...backends.functions.position import position_coordinates, relative_position_bias
from ...backends.protocol import BlockSettings, BlockWeights, Windows
from ...windows.grid import Size
from .layer import Norm
from .snapshot import known_layer, take_snapshot
from .swin_block import SwinBlock

CPB_HIDDEN = 512  # channels inside the MLP that gives the position bias


@known_layer
class WindowAttentionV2(BaseModule):
    """Scaled cosine attention inside each of many windows (sections 3.3 and 3.4).

    The bias of a pair of places is 16 sigmoid(`cpb_mlp`(their offset on a log scale)). So weights trained with one
    window give the bias of any other window.

    Args:
        embed_dims: C.
        num_heads: h; must divide C.
        window_size: (Wh, Ww).
        pretrained_window: the window the weights were trained with; it scales the offsets. None: the window in use.
        qkv_bias: whether query and value have a bias; the key has none.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout after the output projection.
    """

    scale = 1.0  # of q k^T; `cosine_scale` is already in q, as its length

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: Size,
        pretrained_window: Optional[Size],
        qkv_bias: bool,
        attn_drop_rate: float,
        proj_drop_rate: float,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.window_size = window_size
        self.pretrained_window = pretrained_window
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10)))
        self.cpb_mlp = nn.Sequential(nn.Linear(2, CPB_HIDDEN), nn.ReLU(), nn.Linear(CPB_HIDDEN, num_heads, bias=False))
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(embed_dims)) if qkv_bias else None
        self.v_bias = nn.Parameter(torch.zeros(embed_dims)) if qkv_bias else None
        self.attn_drop_rate = attn_drop_rate
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop_rate)

    @property
    def qkv_bias(self) -> Optional[Tensor]:
        """The biases of query, key and value, concatenated: (3C,). The key's bias is 0."""
        if self.q_bias is None or self.v_bias is None:
            return None
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])

    def cosine_scale(self) -> Tensor:
        """The factor on the cosines of each head: (h,)."""
        return cosine_scale(self.logit_scale)

    def position_bias(self, window_size: Size) -> Tensor:
        """The relative position bias (h, N, N) of windows of `window_size`, in the dtype of the weights.

        It is computed in at least float32, also under autocast: in half precision many offsets would get the same bias.
        """
        device, dtype = self.logit_scale.device, self.logit_scale.dtype
        wide = torch.promote_types(dtype, torch.float32)
        coordinates_R2 = position_coordinates(window_size, self.pretrained_window or window_size, device).to(wide)
        with without_autocast(device.type):
            if dtype == wide:
                table_Rh = self.cpb_mlp(coordinates_R2)
            else:
                first, activation, last = cast(Any, self.cpb_mlp)
                hidden = activation(F.linear(coordinates_R2, first.weight.to(wide), first.bias.to(wide)))
                table_Rh = F.linear(hidden, last.weight.to(wide))
            return relative_position_bias(16 * table_Rh.sigmoid(), window_size).to(dtype)

    def forward(self, x: Tensor, windows: Windows, window_size: Size) -> Tensor:
        """Attend inside windows: take their tokens, return as many tokens."""
        qkv = self.qkv(windows.pad(x))
        if self.qkv_bias is not None:
            qkv = qkv + self.qkv_bias.to(qkv.dtype)
        qkv = normalise_qk(qkv, self.cosine_scale())
        bias_hNN = self.position_bias(window_size)
        y: Tensor = self.proj_drop(
            self.proj(windows.attend(qkv, bias_hNN, self.scale, self.attn_drop_rate if self.training else 0.0))
        )
        return y


@known_layer
class SwinV2Block(SwinBlock):
    """One block, with residual post-norm and scaled cosine attention.

    The norms start at zero, so that a block starts as the identity, as microsoft/Swin-Transformer's does.

    Args:
        extra_norm: whether the shortcut is normalised too, after the block (`norm3`), as in every sixth block of Swin
            V2-H and -G.
        block: arguments of `SwinBlock`, and of `WindowAttentionV2`.
    """

    kind = 'v2'
    attention_kind = WindowAttentionV2

    def __init__(self, embed_dims: int, norm_cfg: dict[str, Any], extra_norm: bool, **block: Any):
        super().__init__(embed_dims=embed_dims, norm_cfg=norm_cfg, **block)
        self.norm3: Optional[Norm] = build_norm_layer(norm_cfg, embed_dims)[1] if extra_norm else None
        for norm in (self.norm1, self.norm2):
            for parameter in norm.parameters():
                nn.init.zeros_(parameter)
        take_snapshot(self, self.activations)

    def settings(self) -> BlockSettings:
        """See `SwinBlock`."""
        settings = super().settings()
        return settings if self.norm3 is None else settings._replace(eps=(*settings.eps, self.norm3.eps))

    def _weights(self, x_BHWC: Tensor, window_size: Size) -> BlockWeights:
        weights: BlockWeights = super()._weights(x_BHWC, window_size)
        msa, norm3 = self.attn.w_msa, self.norm3
        weights = weights._replace(qkv_bias=msa.qkv_bias, cosine_scale_h=msa.cosine_scale())
        return weights if norm3 is None else weights._replace(norm3_weight=norm3.weight, norm3_bias=norm3.bias)

    def _compute_by_modules(self, x: Tensor, windows: Windows, window_size: Size) -> Tensor:
        x = x + self._drop_path_by_module(self.norm1(self.attn(x, windows, window_size)), windows)
        x = x + self._drop_path_by_module(self.norm2(self.ffn(x)), windows)
        return x if self.norm3 is None else self.norm3(x)
