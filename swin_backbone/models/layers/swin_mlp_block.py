"""The block of Swin-MLP, the all-MLP variant of microsoft/Swin-Transformer.

A linear layer over the places of a window replaces attention, and windows are shifted by padding.

Layout: B batch, H W height and width of a map, C channels, L windows, N places of a window, h heads, d channels of a
head.
"""

from typing import Any, Optional

from torch import Tensor, nn

from ...windows.grid import Windows
from .swin_block import SwinBlock


class SwinMLPBlock(SwinBlock):
    """A block of Swin-MLP. `spatial_mlp` is a grouped Conv1d: a group is a head, a channel is a place.

    Under `small_map='shrink'` windows do not shift on a map with a side no longer than the window's, as in
    microsoft/Swin-Transformer's classifiers. A small map is always padded to the window, because the weights fit a
    single window size.

    Args:
        block: arguments of `SwinBlock`. Padding is zeros and adds nothing to a token: `mask_padding` has no effect.
    """

    def _build_mixing(self, embed_dims: int, num_heads: int, **attention: Any) -> None:
        self.num_heads = num_heads
        places = num_heads * self.window_size[0] * self.window_size[1]
        self.spatial_mlp: Any = nn.Conv1d(places, places, kernel_size=1, groups=num_heads)

    def forward(self, x_BHWC: Tensor, recomputes: bool = False, overwrites: bool = False) -> Tensor:
        """See `SwinBlock`."""
        y_BHWC = self.in_another_way(x_BHWC, recomputes, overwrites)
        if y_BHWC is not None:
            return y_BHWC
        windows = self.windows(x_BHWC)
        x_LNC = windows.partition(self.norm1(x_BHWC))
        x_BHWC = x_BHWC + self.drop_path(windows.reverse(self.mix_places(x_LNC), x_BHWC.shape[0]))
        z_BHWC: Tensor = x_BHWC + self.drop_path(self.ffn(self.norm2(x_BHWC)))
        return z_BHWC

    def mix_places(self, x_LNC: Tensor) -> Tensor:
        """Apply the linear layer over the places of a window, head by head: (L, N, C)."""
        (L, N, C), h = x_LNC.shape, self.num_heads
        heads_LPd = x_LNC.view(L, N, h, C // h).transpose(1, 2).reshape(L, h * N, C // h)
        y_LPd: Tensor = self.spatial_mlp(heads_LPd)
        return y_LPd.view(L, h, N, C // h).transpose(1, 2).reshape(L, N, C)

    def windows(self, x_BHWC: Tensor) -> Windows:
        """See `SwinBlock`."""
        return super().windows(x_BHWC)._replace(window_size=self.window_size, mask_padding=False, rolls=False)

    def why_not_native(self) -> Optional[str]:
        """See `Layer`."""
        return 'The compiled library has no block of Swin-MLP.'
