"""Backbones for mmpretrain's SimMIM (Xie et al. 2022). SimMIM masks patches and trains a model to predict the patches.

Layout: B batch, C channels, H W height and width.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from .pyramid import SwinPyramid
from .swin import SwinBackbone
from .swin_v2 import SwinV2Backbone


class MaskedPyramid(SwinPyramid):
    """A Swin that replaces masked tokens of the patch embedding with a learnt token.

    `SwinBackbone` and `SwinV2Backbone` load the trained weights without the mask token and the norm of the last stage.
    The norm was not trained for a detector.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{'out_indices': None, **kwargs})
        self.mask_token = nn.Parameter(torch.zeros(1, 1, self.num_features[0]))

    def layer_order(self) -> list[list[str]]:
        """Return the layers, see `SwinPyramid.layer_order`. The mask token is one of the tokens of layer 0."""
        first, *others = super().layer_order()
        return [[*first, 'mask_token'], *others]

    def init_weights(self) -> None:
        """Initialise like the pyramid, and the mask token from a normal distribution, like the paper's code."""
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        super().init_weights()

    def forward(  # type: ignore[override]  # mmpretrain's SimMIM calls `forward` with a mask
        self, x_BCHW: Tensor, mask_BHW: Optional[Tensor] = None, **outputs: Any
    ) -> tuple[Tensor, ...]:
        """Return the feature maps of images, see `SwinPyramid.forward`.

        Args:
            mask_BHW: (B, H / patch, W / patch), 1 for masked patches; None: no patch is masked.
            outputs: `out_indices`.

        Raises:
            ValueError: if the mask has a wrong shape.
        """
        if mask_BHW is None:
            return super().forward(x_BCHW, **outputs)

        def hide(tokens_BHWC: Tensor) -> Tensor:
            if mask_BHW.shape != tokens_BHWC.shape[:3]:
                raise ValueError(f'mask takes (B, H, W) = {tuple(tokens_BHWC.shape[:3])}, got {tuple(mask_BHW.shape)}')
            return torch.where(mask_BHW.bool()[..., None], self.mask_token.to(tokens_BHWC.dtype), tokens_BHWC)

        return super().forward(x_BCHW, hide, **outputs)


class SimMIMSwinBackbone(MaskedPyramid, SwinBackbone):
    """`SwinBackbone` for mmpretrain's `SimMIM`; the default output is the last stage alone."""


class SimMIMSwinV2Backbone(MaskedPyramid, SwinV2Backbone):
    """`SwinV2Backbone` for mmpretrain's `SimMIM`. mmpretrain has no Swin V2 for SimMIM."""
