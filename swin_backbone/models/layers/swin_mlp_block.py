"""The block of Swin-MLP, the all-MLP variant of microsoft/Swin-Transformer.

A linear layer over the places of a window replaces attention, and windows are shifted by padding.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads, M = h*N, d
channels of a head.
"""

from typing import Any

from torch import Tensor, nn

from ...replace import replaceable
from ...sizes import Size
from ..arguments import build_norm
from ..windows import Windows
from .block import BaseBlock, DropPath, build_mlp


class SwinMLPBlock(BaseBlock):
    """A block of Swin-MLP. `spatial_mlp` is a grouped Conv1d: a group is a head, a channel of the Conv1d is a place.

    Under `small_map='shrink'` windows do not shift on a map with a side no longer than the window's, as in
    microsoft/Swin-Transformer's classifiers. A small map is always padded to the window, because the weights fit a
    single window size. Padding is zeros and adds nothing to a token.

    The arguments are those of `SwinBlock`.
    """

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
    ):
        super().__init__(window_size, shift, small_map)
        self.num_heads = num_heads
        self.norm1 = build_norm(norm_cfg, embed_dims)
        channels = num_heads * window_size[0] * window_size[1]
        self.spatial_mlp = nn.Conv1d(channels, channels, kernel_size=1, groups=num_heads)
        self.norm2 = build_norm(norm_cfg, embed_dims)
        self.ffn = build_mlp(embed_dims, feedforward_channels, act_cfg, drop_rate)
        self.drop_path = DropPath(drop_path_rate)

    @replaceable
    def forward(self, x_BHWC: Tensor) -> Tensor:
        """Run the block on a batch of maps (B, H, W, C); the output has the input's shape."""
        windows = self.windows(x_BHWC)
        x_LNC = windows.partition(self.norm1(x_BHWC))
        x_BHWC = x_BHWC + self.drop_path(windows.reverse(self.mix_places(x_LNC), x_BHWC.shape[0]))
        x_BHWC = x_BHWC + self.drop_path(self.ffn(self.norm2(x_BHWC)))
        return x_BHWC

    def mix_places(self, x_LNC: Tensor) -> Tensor:
        """Apply the linear layer over the places of a window, head by head: (L, N, C)."""
        (L, N, C), h = x_LNC.shape, self.num_heads
        heads_LMd = x_LNC.view(L, N, h, C // h).transpose(1, 2).reshape(L, h * N, C // h)
        y_LMd = self.spatial_mlp(heads_LMd)
        return y_LMd.view(L, h, N, C // h).transpose(1, 2).reshape(L, N, C)

    def windows(self, x_BHWC: Tensor) -> Windows:
        """Return the windows of the maps. A shift pads the maps, and does not roll them.

        Where `small_map='shrink'` would shrink the window, it only drops the shift: the weights fit one size of window.
        """
        windows, (Wh, Ww) = super().windows(x_BHWC), self.window_size
        down, right = windows.shift
        pad_before = Wh - down if down else 0, Ww - right if right else 0
        return windows._replace(window_size=(Wh, Ww), shift=(0, 0), pad_before=pad_before)
