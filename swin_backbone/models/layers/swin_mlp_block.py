"""The block of Swin-MLP, the all-MLP variant of microsoft/Swin-Transformer. A linear layer over the places of a window
replaces attention, and windows are shifted by padding.

Layout: B batch, H W height and width of a map, C channels, T tokens, L windows, N places of a window, h heads.
"""

from typing import Any

from torch import Tensor, nn

from ...backends.block import BlockSettings, MLPBlockWeights, draw_drop_path, swin_mlp_block
from ...backends.graph import RolledWindows
from ...backends.padded import PaddedInGraph, PaddedTables
from ...backends.plan import Plan, WindowCut
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

    compute = compute_fused = staticmethod(swin_mlp_block)

    def _make_mixing(self, embed_dims: int, num_heads: int, cut: WindowCut, **attention: Any) -> None:
        self.cut, self.num_heads = cut, num_heads
        places = num_heads * cut.window_size[0] * cut.window_size[1]
        self.spatial_mlp: Any = nn.Conv1d(places, places, kernel_size=1, groups=num_heads)

    def _windows(self, x_BHWC: Tensor, plan: Plan) -> tuple[list, Size]:
        cut = self.cut._replace(small_map='pad')
        # 'shrink' is tested first: under 'pad' no size is read, since reading one would be a guard for torch.compile.
        if self.cut.small_map == 'shrink' and any(n <= side for n, side in zip(x_BHWC.shape[1:3], cut.window_size)):
            cut = cut._replace(shift=(0, 0))
        in_graph = isinstance(plan.windows_kind, type) and issubclass(plan.windows_kind, RolledWindows)
        kind = PaddedInGraph if in_graph else PaddedTables
        return plan._replace(windows_kind=kind).windows(x_BHWC, cut)

    def _weights(self, x_BHWC: Tensor, window_size: Size, plan: Plan) -> MLPBlockWeights:
        mix, N = self.spatial_mlp, window_size[0] * window_size[1]
        fc1, fc2, cast = self.ffn.layers[0][0], self.ffn.layers[1], plan.cast
        rate = self.drop_path.drop_prob if self.drop_path.training else 0.0
        return MLPBlockWeights(
            norm1_weight=self.norm1.weight,
            norm1_bias=self.norm1.bias,
            mix_weight_hNN=cast(mix.weight).view(self.num_heads, N, N),
            mix_bias_hN=cast(mix.bias).view(self.num_heads, N),
            norm2_weight=self.norm2.weight,
            norm2_bias=self.norm2.bias,
            fc1_weight=cast(fc1.weight),
            fc1_bias=cast(fc1.bias),
            fc2_weight=cast(fc2.weight),
            fc2_bias=cast(fc2.bias),
            drop_path_2B=draw_drop_path(rate, x_BHWC.shape[0], x_BHWC.device) if rate else None,
        )

    def _settings(self) -> BlockSettings:
        (_, activation, hidden_drop), _, ffn_drop = self.ffn.layers
        rates = [drop.p if drop.training else 0.0 for drop in (hidden_drop, ffn_drop)]
        eps = self.norm1.eps, self.norm2.eps
        return BlockSettings(1.0, eps, activation, 0.0, 0.0, hidden_drop=rates[0], ffn_drop=rates[1])

    def _compute_by_modules(self, x: Tensor, windows: Any, _weights: tuple, window_size: Size) -> Tensor:
        x_LNC = windows.to_windows(windows.pad(self.norm1(x)))
        (L, N, C), h = x_LNC.shape, self.num_heads
        places = self.spatial_mlp(x_LNC.view(L, N, h, C // h).transpose(1, 2).reshape(L, h * N, C // h))
        y_LNC = places.view(L, h, N, C // h).transpose(1, 2).reshape(L, N, C)
        x = x + self._drop_path_by_module(windows.to_tokens(y_LNC), windows)
        return x + self._drop_path_by_module(self.ffn(self.norm2(x)), windows)
