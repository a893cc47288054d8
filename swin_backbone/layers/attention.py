"""(Shifted-)window multi-head self-attention.

Layout: B batch, H W height and width of a map, C channels, T tokens, N places of a window, h heads.
"""

from typing import Optional, Union

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from ..ops.attention import attend_in_windows, relative_position_bias
from ..ops.autocast import autocast_dtype
from ..ops.backend import takes_kernel
from ..ops.fused import FusedWindows
from ..ops.traced import TracedWindows
from ..ops.windows import Size, Strip, WindowGrid, fit_window, window_grid


class WindowAttention(BaseModule):
    """Multi-head self-attention with a relative position bias, inside each of many windows (W-MSA).

    Args:
        embed_dims: C.
        num_heads: h; divides C.
        window_size: (Wh, Ww) the bias table is made for.
        qkv_bias: whether query, key and value have a bias.
        qk_scale: the factor on q k^T; None: d ** -0.5.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout after the output projection.
        attention_backend: see `SwinBackbone`.
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
        attention_backend: str = 'auto',
    ):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dims // num_heads
        self.window_size = window_size
        self.attention_backend = attention_backend
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
        """The rate at which attention weights are dropped now."""
        return self.attn_drop_rate if self.training else 0.0

    @property
    def qkv_bias(self) -> Optional[Tensor]:
        """The bias of query, key and value, one behind the other: (3C,)."""
        return self.qkv.bias

    def position_bias(self, window_size: Size) -> Tensor:
        """The relative position bias (h, N, N) of windows of `window_size`, at most that of the table."""
        return relative_position_bias(self.relative_position_bias_table, window_size, self.window_size)

    def forward(self, x_TC: Tensor, strip: Strip, window_size: Size) -> Tensor:
        """Attend inside the windows of a strip: its tokens, normalised, to as many."""
        qkv_T3C = self.qkv(strip.with_padding_token(x_TC))
        bias_hNN = self.position_bias(window_size).to(qkv_T3C.dtype)
        x_TC = attend_in_windows(
            qkv_T3C, strip, bias_hNN, self.num_heads, self.scale, self.dropout, self.attention_backend
        )
        return self.proj_drop(self.proj(x_TC))


class ShiftedWindowAttention(BaseModule):
    """Window attention on a map cut into windows that may be shifted (SW-MSA).

    Args:
        shift: (rows, columns) of the cyclic shift; (0, 0) for none.
        small_map: 'pad' or 'shrink', see `ops.windows.fit_window`.
        mask_padding: keep tokens from attending to padding.
        window_msa: the attention inside windows: this class, or Swin V2's.
        attention: further arguments of that.
    """

    def __init__(
        self,
        window_size: Size,
        shift: Size,
        small_map: str,
        mask_padding: bool,
        window_msa: type[BaseModule] = WindowAttention,
        **attention,
    ):
        super().__init__()
        self.window_size = window_size
        self.shift = shift
        self.small_map = small_map
        self.mask_padding = mask_padding
        self.w_msa = window_msa(window_size=window_size, **attention)

    def windows_of(
        self, x_BHWC: Tensor, in_strips: bool = False
    ) -> tuple[Union[WindowGrid, FusedWindows, TracedWindows], Size]:
        """How a batch of maps is cut into windows, and their size.

        Args:
            in_strips: whether strips are asked for, and so windows that can be cut into them.
        """
        B, H, W, _ = x_BHWC.shape
        window_size, shift = fit_window(H, W, self.window_size, self.shift, self.small_map)
        msa, device = self.w_msa, x_BHWC.device
        dtype = autocast_dtype(x_BHWC)
        if takes_kernel(msa.attention_backend, device, dtype, window_size, msa.head_dim, msa.dropout, in_strips):
            arrange = FusedWindows
        elif msa.attention_backend == 'reference' or torch.compiler.is_compiling() or device.type == 'meta':
            arrange = TracedWindows  # meta tensors have no values from which index tables could be made
        else:
            arrange = window_grid
        return arrange(B, H, W, window_size, shift, self.mask_padding, x_BHWC.device), window_size

    def forward(self, x_TC: Tensor, strip: Strip, window_size: Size) -> Tensor:
        """The normalised tokens of a strip to as many."""
        return self.w_msa(x_TC, strip, window_size)
