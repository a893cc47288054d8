"""The Swin V2 block of figure 1 of the paper (Liu et al. 2022, arXiv 2111.09883).

The block has scaled cosine attention with a continuous position bias, and norms after attention and MLP.

Layout: B batch, H W height and width of a map, C channels, R offsets in a window, N places of a window, h heads, T
tokens, d channels of a head; 2 stands for query and key, 3 for query, key and value.
"""

import math
from typing import Any, Optional, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...modes import without_autocast
from ...positions import log_spaced_coordinates
from ...replace import replaceable
from ...sizes import Size
from ..arguments import build_norm
from ..windows import make_position_bias
from .attention import BaseAttention, ShiftedWindowAttention
from .block import BaseBlock, DropPath, build_mlp

CPB_HIDDEN = 512  # hidden channels of the MLP of the position bias


class WindowAttentionV2(BaseAttention):
    """Scaled cosine attention inside windows (sections 3.3 and 3.4).

    The bias of a pair of places is 16 sigmoid(`cpb_mlp`(offset on a log scale)). Therefore trained weights give the
    bias of a window of any size.

    Args:
        embed_dims: C.
        num_heads: h; must divide C.
        window_size: (Wh, Ww).
        pretrained_window: the window in training, which sets the scale of the offsets. None: the window in use.
        qkv_bias: whether query and value have a bias; the key has no bias.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout after the output projection.
    """

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
        self.scale = 1.0  # of q k^T; `project` has scaled q already
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

    def position_bias(self, window_size: Size) -> Tensor:
        """Return the relative position bias (h, N, N) of windows of `window_size`, in the dtype of the weights.

        The MLP computes in at least float32, also under autocast: half precision gives many offsets an equal bias.
        """
        device, dtype = self.logit_scale.device, self.logit_scale.dtype
        wide_dtype = _find_wide_dtype(self.logit_scale)
        coordinates_R2 = log_spaced_coordinates(window_size, self.pretrained_window or window_size, device, wide_dtype)
        with without_autocast(device.type):
            if dtype == wide_dtype:
                table_Rh = self.cpb_mlp(coordinates_R2)
            else:
                first, activation, last = cast(Any, self.cpb_mlp)
                first_weight, first_bias = first.weight.to(wide_dtype), first.bias.to(wide_dtype)
                hidden = activation(F.linear(coordinates_R2, first_weight, first_bias))
                table_Rh = F.linear(hidden, last.weight.to(wide_dtype))
            return make_position_bias(16 * table_Rh.sigmoid(), window_size).to(dtype)

    def project(self, tokens: Tensor) -> Tensor:
        """Return queries of length `scale_h` of their head, keys of length 1, and values, concatenated."""
        qkv: Tensor = self.qkv(tokens)
        if self.qkv_bias is not None:
            qkv = qkv + self.qkv_bias.to(qkv.dtype)
        return normalise_qk(qkv, compute_cosine_scale(self.logit_scale))

    @property
    def qkv_bias(self) -> Optional[Tensor]:
        """The biases of query, key and value, concatenated: (3C,); the key's bias is 0."""
        if self.q_bias is None or self.v_bias is None:
            return None
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])


class SwinV2Block(BaseBlock):
    """A block with residual post-norm and scaled cosine attention.

    The norms start at zero: a new block is the identity, like microsoft/Swin-Transformer's.

    Args:
        pretrained_window: see `WindowAttentionV2`.
        extra_norm: whether the shortcut is normalised too, after the block (`norm3`), as in every sixth block of Swin
            V2-H and -G.

    The other arguments are those of `SwinBlock`.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: Size,
        shift: Size,
        feedforward_channels: int,
        pretrained_window: Optional[Size],
        qkv_bias: bool,
        attn_drop_rate: float,
        drop_rate: float,
        drop_path_rate: float,
        act_cfg: dict[str, Any],
        norm_cfg: dict[str, Any],
        extra_norm: bool,
        small_map: str,
        mask_padding: bool,
    ):
        super().__init__(window_size, shift, small_map, mask_padding)
        self.norm1 = build_norm(norm_cfg, embed_dims)
        arguments = embed_dims, num_heads, window_size, pretrained_window, qkv_bias, attn_drop_rate, drop_rate
        self.attn = ShiftedWindowAttention(WindowAttentionV2(*arguments))
        self.norm2 = build_norm(norm_cfg, embed_dims)
        self.ffn = build_mlp(embed_dims, feedforward_channels, act_cfg, drop_rate)
        self.drop_path = DropPath(drop_path_rate)
        self.norm3 = build_norm(norm_cfg, embed_dims) if extra_norm else None
        for norm in (self.norm1, self.norm2):
            for parameter in norm.parameters():
                nn.init.zeros_(parameter)

    @replaceable
    def forward(self, x_BHWC: Tensor) -> Tensor:
        """Run the block on a batch of maps (B, H, W, C); the output has the input's shape."""
        x_BHWC = x_BHWC + self.drop_path(self.norm1(self.attn(x_BHWC, self.windows(x_BHWC))))
        x_BHWC = x_BHWC + self.drop_path(self.norm2(self.ffn(x_BHWC)))
        return x_BHWC if self.norm3 is None else self.norm3(x_BHWC)


def compute_cosine_scale(logit_scale_h11: Tensor) -> Tensor:
    """Return the factors on cosines, exp(logit_scale), at most 100: (h,), in float32 at least."""
    scale_h = logit_scale_h11.flatten()
    # torch.compile of dynamic sizes turns a global float into a symbol, which `checkpoint` rejects (torch 2.13).
    return scale_h.to(_find_wide_dtype(scale_h)).clamp(max=math.log(100)).exp()


def normalise_qk(qkv_T3C: Tensor, scale_h: Tensor) -> Tensor:
    """Scale each query to length `scale_h` of its head, and each key to length 1; values stay: (..., 3C).

    The dtype is the input's. Lengths are computed in float32 at least: no square overflows. A vector shorter than
    1e-12, for example a key of padding, has no direction. The result for a short vector is 0, without gradient.
    """
    qkv_T3hd, dtype = qkv_T3C.unflatten(-1, (3, len(scale_h), -1)), _find_wide_dtype(qkv_T3C)
    qk_T2hd = qkv_T3hd[..., :2, :, :]
    lengths_T2h = torch.linalg.vector_norm(qk_T2hd, dim=-1, dtype=dtype)
    is_short_T2h = lengths_T2h <= 1e-12  # as torch.nn.functional.normalize; no global float, see `compute_cosine_scale`
    # The second derivative of the length of a zero vector is NaN, even if no result depends on the length. A traced
    # graph may run with or without gradients.
    if torch.is_grad_enabled() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        qk_T2hd = qk_T2hd.masked_fill(is_short_T2h[..., None], 1.0)
        lengths_T2h = torch.linalg.vector_norm(qk_T2hd, dim=-1, dtype=dtype)
    new_lengths_2h = torch.stack([scale_h, torch.ones_like(scale_h)]).to(dtype)
    factors_T2h = (new_lengths_2h / lengths_T2h).masked_fill(is_short_T2h, 0.0)
    factors_T3h1 = torch.cat([factors_T2h, torch.ones_like(factors_T2h[..., :1, :])], dim=-2)[..., None]
    return (qkv_T3hd * factors_T3h1).to(qkv_T3C.dtype).flatten(-3)


def _find_wide_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
