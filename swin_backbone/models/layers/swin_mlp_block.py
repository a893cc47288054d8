"""The block of Swin-MLP, the all-MLP variant of microsoft/Swin-Transformer. A linear layer over the places of a window
replaces attention, and windows are shifted by padding.

Layout: B batch, H W height and width of a map, C channels, T tokens, L windows, N places of a window, h heads.
"""

from typing import Any

from torch import Tensor, nn

from ...backends.functions.block import draw_drop_path
from ...backends.protocol import BlockSettings, MLPBlockWeights
from ...windows.grid import Size
from .snapshot import known_layer
from .swin_block import SwinBlock


@known_layer
class SwinMLPBlock(SwinBlock):
    """One block of Swin-MLP. Its `spatial_mlp` is a grouped Conv1d: a group is a head, its channels are the places.

    Under `small_map='shrink'` windows do not shift on a map with a side no longer than the window's, as in
    microsoft/Swin-Transformer's classifiers. In both cases a small map is padded to the window, because the weights fit
    only this window.

    Args:
        block: arguments of `SwinBlock`. mask_padding and the arguments of attention have no effect: padding is zeros
            and adds nothing to a token.
    """

    kind = 'mlp'
    fixed_window = True

    def _make_mixing(self, embed_dims: int, num_heads: int, **attention: Any) -> None:
        self.num_heads = num_heads
        places = num_heads * self.cut.window_size[0] * self.cut.window_size[1]
        self.spatial_mlp: Any = nn.Conv1d(places, places, kernel_size=1, groups=num_heads)

    def settings(self) -> BlockSettings:
        """See `SwinBlock`."""
        (_, activation, hidden_drop), _, ffn_drop = self.ffn.layers
        rates = [drop.p if drop.training else 0.0 for drop in (hidden_drop, ffn_drop)]
        eps = self.norm1.eps, self.norm2.eps
        dtype = self.spatial_mlp.weight.dtype
        return BlockSettings(self.kind, dtype, 1.0, eps, activation, 0.0, 0.0, hidden_drop=rates[0], ffn_drop=rates[1])

    def _weights(self, x_BHWC: Tensor, window_size: Size) -> MLPBlockWeights:
        mix, N, fc1, fc2 = self.spatial_mlp, window_size[0] * window_size[1], self.ffn.layers[0][0], self.ffn.layers[1]
        rate = self.drop_path.drop_prob if self.drop_path.training else 0.0
        return MLPBlockWeights(
            norm1_weight=self.norm1.weight,
            norm1_bias=self.norm1.bias,
            mix_weight_hNN=mix.weight.view(self.num_heads, N, N),
            mix_bias_hN=mix.bias.view(self.num_heads, N),
            norm2_weight=self.norm2.weight,
            norm2_bias=self.norm2.bias,
            fc1_weight=fc1.weight,
            fc1_bias=fc1.bias,
            fc2_weight=fc2.weight,
            fc2_bias=fc2.bias,
            drop_path_2B=draw_drop_path(rate, x_BHWC.shape[0], x_BHWC.device) if rate else None,
        )

    def _compute_by_modules(self, x: Tensor, windows: Any, window_size: Size) -> Tensor:
        x_LNC = windows.to_windows(windows.pad(self.norm1(x)))
        (L, N, C), h = x_LNC.shape, self.num_heads
        places = self.spatial_mlp(x_LNC.view(L, N, h, C // h).transpose(1, 2).reshape(L, h * N, C // h))
        y_LNC = places.view(L, h, N, C // h).transpose(1, 2).reshape(L, N, C)
        x = x + self._drop_path_by_module(windows.to_tokens(y_LNC), windows)
        return x + self._drop_path_by_module(self.ffn(self.norm2(x)), windows)
