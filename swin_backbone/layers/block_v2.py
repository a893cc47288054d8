"""The Swin V2 block: W-MSA or SW-MSA, then an MLP, each followed by its norm and beside a shortcut.

Layout: B batch, H W height and width of a map, C channels, T tokens.
"""

from typing import Any

from mmcv.cnn import build_norm_layer
from torch import Tensor, nn

from ..ops.block import BlockSettings, BlockWeights
from ..ops.block_v2 import swin_v2_block, swin_v2_block_backward
from ..ops.windows import Size, Strip
from .attention import ShiftedWindowAttention
from .attention_v2 import WindowAttentionV2
from .block import SwinBlock


class SwinV2Block(SwinBlock):
    """One block of figure 1 of Liu et al. 2022, arXiv 2111.09883: residual post-norm, scaled cosine attention.

    The norms start at zero, so that a block starts as the identity, as microsoft/Swin-Transformer's does.

    Args:
        extra_norm: whether the shortcut is normalised too, behind the block (`norm3`), as in every sixth of Swin V2-H
            and -G.
        block: arguments of `SwinBlock`, and of `WindowAttentionV2`.
    """

    window_msa = WindowAttentionV2
    known_layers = (WindowAttentionV2, ShiftedWindowAttention, nn.Sequential, nn.ReLU)
    compute = staticmethod(swin_v2_block)
    compute_backward = staticmethod(swin_v2_block_backward)

    def __init__(self, embed_dims: int, norm_cfg: dict, extra_norm: bool, **block: Any):
        super().__init__(embed_dims=embed_dims, norm_cfg=norm_cfg, **block)
        self.norm3 = build_norm_layer(norm_cfg, embed_dims)[1] if extra_norm else None
        for norm in (self.norm1, self.norm2):
            for parameter in norm.parameters():
                nn.init.zeros_(parameter)

    def _settings(self) -> BlockSettings:
        settings = super()._settings()
        return settings if self.norm3 is None else settings._replace(eps=(*settings.eps, self.norm3.eps))

    def _weights(self, x_BHWC: Tensor, window_size: Size) -> BlockWeights:
        return (
            super()
            ._weights(x_BHWC, window_size)
            ._replace(
                cosine_scale_h=self.attn.w_msa.cosine_scale(),
                norm3_weight=getattr(self.norm3, 'weight', None),
                norm3_bias=getattr(self.norm3, 'bias', None),
            )
        )

    def _by_modules(self, x_TC: Tensor, strip: Strip, window_size: Size) -> Tensor:
        x_TC = x_TC + self._drop_path_by_module(self.norm1(self.attn(x_TC, strip, window_size)), strip)
        x_TC = x_TC + self._drop_path_by_module(self.norm2(self.ffn(x_TC)), strip)
        return x_TC if self.norm3 is None else self.norm3(x_TC)
