"""The Swin V2 block of figure 1 of the paper (Liu et al. 2022, arXiv 2111.09883).

The block has scaled cosine attention with a continuous position bias, and norms after attention and MLP.

Layout: B batch, H W height and width of a map, C channels, R offsets in a window, N places of a window, h heads.
"""

import math
from typing import Any, Optional, cast

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...kernels.attention import attend
from ...kernels.choose import without_autocast
from ...kernels.cosine import cosine_scale, normalise_qk
from ...windows.grid import Size, Windows
from ...windows.position import log_spaced_coordinates, relative_position_bias
from .layer import known
from .swin_block import SwinBlock

CPB_HIDDEN = 512  # hidden channels of the MLP of the position bias


@known('num_heads', 'attn_drop_rate', 'training', 'logit_scale', 'q_bias', 'v_bias')
class WindowAttentionV2(BaseModule):
    """Scaled cosine attention inside windows (sections 3.3 and 3.4).

    The bias of a pair of places is 16 sigmoid(`cpb_mlp`(offset on a log scale)). Therefore trained weights give the
    bias of a window of any size.

    Args:
        embed_dims: C.
        num_heads: h; must divide C.
        window_size: (Wh, Ww).
        pretrained_window: the window of the training; the window scales the offsets. None: the window in use.
        qkv_bias: whether query and value have a bias; the key has no bias.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout after the output projection.
    """

    backend = 'auto'
    scale = 1.0  # of q k^T; `cosine_scale` is in the length of q

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

    def own_parameters(self) -> list[Tensor]:
        """See `WindowAttention`."""
        biases = [bias for bias in (self.q_bias, self.v_bias) if bias is not None]
        return [self.logit_scale, *self.cpb_mlp.parameters(), *biases]

    @property
    def qkv_bias(self) -> Optional[Tensor]:
        """The biases of query, key and value, concatenated: (3C,); the key's bias is 0."""
        if self.q_bias is None or self.v_bias is None:
            return None
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])

    def cosine_scale(self) -> Tensor:
        """Return the factors on the heads' cosines: (h,)."""
        return cosine_scale(self.logit_scale)

    def position_bias(self, window_size: Size) -> Tensor:
        """Return the relative position bias (h, N, N) of windows of `window_size`, in the dtype of the weights.

        The MLP computes in at least float32, also under autocast: half precision gives many offsets an equal bias.
        """
        device, dtype = self.logit_scale.device, self.logit_scale.dtype
        wide = torch.promote_types(dtype, torch.float32)
        coordinates_R2 = log_spaced_coordinates(window_size, self.pretrained_window or window_size, device, wide)
        with without_autocast(device.type):
            if dtype == wide:
                table_Rh = self.cpb_mlp(coordinates_R2)
            else:
                first, activation, last = cast(Any, self.cpb_mlp)
                hidden = activation(F.linear(coordinates_R2, first.weight.to(wide), first.bias.to(wide)))
                table_Rh = F.linear(hidden, last.weight.to(wide))
            return relative_position_bias(16 * table_Rh.sigmoid(), window_size).to(dtype)

    def forward(self, x_BHWC: Tensor, windows: Windows) -> Tensor:
        """Attend inside windows (equation 2): tokens (B, H, W, C) to as many tokens."""
        bias_hNN, dropout = self.position_bias(windows.window_size), self.attn_drop_rate if self.training else 0.0
        y_BHWC = attend(x_BHWC, self.project, bias_hNN, self.scale, windows, dropout, self.backend)
        z_BHWC: Tensor = self.proj_drop(self.proj(y_BHWC))
        return z_BHWC

    def project(self, tokens: Tensor) -> Tensor:
        """Return queries of the length of the cosine scale, keys of length 1, and values, concatenated."""
        qkv: Tensor = self.qkv(tokens)
        if self.qkv_bias is not None:
            qkv = qkv + self.qkv_bias.to(qkv.dtype)
        return normalise_qk(qkv, self.cosine_scale())


class SwinV2Block(SwinBlock):
    """A block with residual post-norm and scaled cosine attention.

    The norms start at zero: a new block is the identity, like microsoft/Swin-Transformer's.

    Args:
        extra_norm: whether the shortcut is normalised too, after the block (`norm3`), as in every sixth block of Swin
            V2-H and -G.
        block: arguments of `SwinBlock`, and of `WindowAttentionV2`.
    """

    attention_kind = WindowAttentionV2

    def __init__(self, embed_dims: int, norm_cfg: dict[str, Any], extra_norm: bool, **block: Any):
        super().__init__(embed_dims=embed_dims, norm_cfg=norm_cfg, **block)
        self.norm3 = build_norm_layer(norm_cfg, embed_dims)[1] if extra_norm else None
        for norm in (self.norm1, self.norm2):
            for parameter in norm.parameters():
                nn.init.zeros_(parameter)
        self.record_modules()

    def forward(self, x_BHWC: Tensor, recomputes: bool = False, overwrites: bool = False) -> Tensor:
        """See `SwinBlock`; the norms are behind attention and MLP."""
        y_BHWC = self.in_another_way(x_BHWC, recomputes, overwrites)
        if y_BHWC is not None:
            return y_BHWC
        windows = self.windows(x_BHWC)
        x_BHWC = x_BHWC + self.drop_path(self.norm1(self.attn(x_BHWC, windows)))
        x_BHWC = x_BHWC + self.drop_path(self.norm2(self.ffn(x_BHWC)))
        return x_BHWC if self.norm3 is None else self.norm3(x_BHWC)

    def why_not_native(self) -> Optional[str]:
        """See `Layer`."""
        if self.attn.w_msa.qkv.bias is not None:
            return 'The compiled library adds q_bias and v_bias to the projection, and qkv has a bias of its own.'
        return super().why_not_native()

    def derived_weights(self, window_size: Size) -> dict[str, Any]:
        """See `SwinBlock`."""
        w_msa = self.attn.w_msa
        position_bias = w_msa.position_bias(window_size)
        return dict(position_bias_hNN=position_bias, qkv_bias=w_msa.qkv_bias, cosine_scale_h=w_msa.cosine_scale())
