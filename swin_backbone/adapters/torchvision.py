"""The backbones under a feature pyramid, for torchvision's detectors: Faster and Mask R-CNN, RetinaNet, FCOS.

Matched to torchvision 0.28: `torchvision.models.detection.backbone_utils.BackboneWithFPN`.
"""

from collections import OrderedDict
from typing import Any, Optional

from torch import Tensor, nn
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock, FeaturePyramidNetwork, LastLevelMaxPool

from ..models import SwinBackbone
from .any_origin import accept_any_origin


class SwinWithFPN(nn.Module):
    """See `backbone_with_fpn`. A checkpoint of any origin loads into `body`."""

    def __init__(self, body: Any, out_channels: int, extra_blocks: Optional[ExtraFPNBlock]):
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramidNetwork(body.out_channels, out_channels, extra_blocks or LastLevelMaxPool())
        self.out_channels = out_channels

    def forward(self, x_BCHW: Tensor) -> dict[str, Tensor]:
        """Return the maps of the pyramid, '0', '1', ... and of `extra_blocks`, of images of any size."""
        return self.fpn(OrderedDict((str(level), x) for level, x in enumerate(self.body(x_BCHW))))


def backbone_with_fpn(
    arch: str = 'tiny',
    out_channels: int = 256,
    extra_blocks: Optional[ExtraFPNBlock] = None,
    family: Any = SwinBackbone,
    **arguments: Any,
) -> SwinWithFPN:
    """Build the `backbone` of torchvision's detectors. The detectors' default mean and std are those of Swin's weights.

    Args:
        arch: a published size.
        out_channels: of each map of the pyramid.
        extra_blocks: makes coarser maps, as for torchvision's own. Default: `LastLevelMaxPool()`.
        family: `SwinBackbone`, `SwinV2Backbone` or `SwinMLPBackbone`.
        arguments: of `family`; `init_cfg=dict(type='Pretrained', checkpoint=...)` loads weights of any origin.
    """
    body = family(arch=arch, **arguments)
    body.init_weights()
    accept_any_origin(body)
    return SwinWithFPN(body, out_channels, extra_blocks)
