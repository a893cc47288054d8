"""Swin V2's multi-head self-attention in windows: scaled cosine attention with a continuous position bias.

Layout: C channels, T tokens, R offsets in a window, N places of a window, h heads.
"""

import math
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..ops.attention import attend_in_windows, relative_position_bias
from ..ops.autocast import without_autocast
from ..ops.cosine import cosine_scale, normalise_qk
from ..ops.position import log_spaced_coordinates
from ..ops.windows import Size, Strip

CPB_HIDDEN = 512  # channels inside the MLP that gives the position bias


class WindowAttentionV2(BaseModule):
    """Scaled cosine attention inside each of many windows (Liu et al. 2022, sections 3.3 and 3.4).

    The bias of a pair of places is 16 sigmoid(`cpb_mlp`(their offset on a log scale)): weights trained at one window
    give the bias of any other.

    Args:
        embed_dims: C.
        num_heads: h; divides C.
        window_size: (Wh, Ww).
        pretrained_window: the window the weights were trained with, by which offsets are scaled; None: by the window
            that is used.
        qkv_bias: whether query and value have a bias; the key has none.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout after the output projection.
        attention_backend: see `SwinBackbone`.
    """

    scale = 1.0  # of q k^T, beyond `cosine_scale`, which is q's length

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: Size,
        pretrained_window: Optional[Size],
        qkv_bias: bool,
        attn_drop_rate: float,
        proj_drop_rate: float,
        attention_backend: str = 'auto',
    ):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dims // num_heads
        self.window_size = window_size
        self.attention_backend = attention_backend
        self.pretrained_window = pretrained_window
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, CPB_HIDDEN), nn.ReLU(inplace=True), nn.Linear(CPB_HIDDEN, num_heads, bias=False)
        )
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(embed_dims)) if qkv_bias else None
        self.v_bias = nn.Parameter(torch.zeros(embed_dims)) if qkv_bias else None
        self.attn_drop_rate = attn_drop_rate
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop_rate)
        self._bias_version, self._bias_hNN = None, None

    @property
    def dropout(self) -> float:
        """The rate at which attention weights are dropped now."""
        return self.attn_drop_rate if self.training else 0.0

    @property
    def qkv_bias(self) -> Optional[Tensor]:
        """The bias of query, key and value, one behind the other: (3C,), that of the key being 0."""
        return None if self.q_bias is None else torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])

    def cosine_scale(self) -> Tensor:
        """By what the cosines of each head are multiplied: (h,)."""
        return cosine_scale(self.logit_scale)

    def position_bias(self, window_size: Size) -> Tensor:
        """The relative position bias (h, N, N) of windows of `window_size`, in the dtype of the weights.

        In eval mode without gradients it is computed once, and again when the weights have changed.
        """
        version = self._version_of(window_size)
        if version is None:
            return self._compute_bias(window_size)
        if version != self._bias_version:
            with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be saved for a backward
                self._bias_version, self._bias_hNN = version, self._compute_bias(window_size)
        return self._bias_hNN

    def forward(self, x_TC: Tensor, strip: Strip, window_size: Size) -> Tensor:
        """Attend inside the windows of a strip: its tokens to as many."""
        qkv_T3C = self.qkv(strip.with_padding_token(x_TC))
        if self.q_bias is not None:
            qkv_T3C = qkv_T3C + self.qkv_bias.to(qkv_T3C.dtype)
        qkv_T3C = normalise_qk(qkv_T3C, self.cosine_scale())
        bias_hNN = self.position_bias(window_size).to(qkv_T3C.dtype)
        x_TC = attend_in_windows(
            qkv_T3C, strip, bias_hNN, self.num_heads, self.scale, self.dropout, self.attention_backend
        )
        return self.proj_drop(self.proj(x_TC))

    def train(self, mode: bool = True) -> 'WindowAttentionV2':
        """Set training or eval mode. What was written through `.data`, as mmengine's EMAHook does, is seen then."""
        self._bias_version, self._bias_hNN = None, None
        return super().train(mode)

    def _apply(self, *args, **kwargs) -> 'WindowAttentionV2':
        self._bias_version, self._bias_hNN = None, None
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_bias_version': None, '_bias_hNN': None}

    def _version_of(self, window_size: Size) -> Optional[tuple]:
        """What changes whenever the bias does; None where it must be computed anew each time."""
        weights = list(self.cpb_mlp.parameters())
        needs_grad = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        one_graph = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if self.training or needs_grad or one_graph or any(weight.is_inference() for weight in weights):
            return None
        return window_size, *((id(weight), weight.data_ptr(), weight._version, weight.dtype) for weight in weights)

    def _compute_bias(self, window_size: Size) -> Tensor:
        """In float32 at least, under autocast too: half precision would tell few offsets apart."""
        first, activation, last = self.cpb_mlp
        device, dtype = first.weight.device, first.weight.dtype
        wide = torch.promote_types(dtype, torch.float32)
        coordinates_R2 = log_spaced_coordinates(window_size, self.pretrained_window or window_size, device).to(wide)
        with without_autocast(device.type):
            if dtype == wide:
                table_Rh = self.cpb_mlp(coordinates_R2)
            else:
                hidden = activation(F.linear(coordinates_R2, first.weight.to(wide), first.bias.to(wide)))
                table_Rh = F.linear(hidden, last.weight.to(wide))
            return relative_position_bias(16 * table_Rh.sigmoid(), window_size).to(dtype)
