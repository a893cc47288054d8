"""The backbone in detectron2, Mask2Former, MaskDINO and OneFormer. Importing this file registers the backbone.

Matched to facebookresearch/detectron2 at 02b5c4e (`detectron2.modeling.Backbone`, `detectron2.layers.ShapeSpec`) and to
`D2SwinTransformer` of facebookresearch/Mask2Former at 9b0651c; MaskDINO and OneFormer have a copy.
"""

from collections.abc import Sequence
from typing import Any, Optional

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, FPN, Backbone
from detectron2.modeling.backbone.fpn import LastLevelMaxPool
from torch import Tensor

from ..models import SwinBackbone
from .any_origin import accept_any_origin

STAGES = {'res2': 0, 'res3': 1, 'res4': 2, 'res5': 3}  # the stage of each output of detectron2


class D2SwinBackbone(SwinBackbone, Backbone):
    """`SwinBackbone` with the interface of detectron2.

    Parameters have the names of `SwinBackbone`. detectron2's checkpointers load checkpoints of `D2SwinTransformer` and
    of any origin.

    Args:
        out_features: the outputs, of 'res2' (stride 4) to 'res5' (stride 32).
        arguments: of `SwinBackbone`.
    """

    def __init__(self, out_features: Sequence[str] = tuple(STAGES), **arguments: Any):
        names = sorted(out_features, key=STAGES.__getitem__)
        super().__init__(out_indices=[STAGES[name] for name in names], **arguments)
        self._out_features = names
        self.init_weights()
        accept_any_origin(self)

    def forward(self, x_BCHW: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Return maps by name, of images of any size."""
        return dict(zip(self._out_features, super().forward(x_BCHW)))

    def output_shape(self) -> dict[str, ShapeSpec]:
        """Return channels and stride of each output."""
        return {
            name: ShapeSpec(channels=self.num_features[stage], stride=4 << stage)
            for name, stage in zip(self._out_features, self.out_indices)
        }

    @property
    def size_divisibility(self) -> int:
        """The divisor of a padded batch's sides that heads expect; the backbone takes all sizes."""
        return 32


def add_swin_config(cfg: CfgNode) -> None:
    """Add `cfg.MODEL.SWIN` with the keys and defaults of Mask2Former, if missing."""
    if 'SWIN' in cfg.MODEL:
        return
    cfg.MODEL.SWIN = CfgNode(
        dict(
            PRETRAIN_IMG_SIZE=224, PATCH_SIZE=4, EMBED_DIM=96, DEPTHS=[2, 2, 6, 2], NUM_HEADS=[3, 6, 12, 24],
            WINDOW_SIZE=7, MLP_RATIO=4.0, QKV_BIAS=True, QK_SCALE=None, DROP_RATE=0.0, ATTN_DROP_RATE=0.0,
            DROP_PATH_RATE=0.3, APE=False, PATCH_NORM=True, OUT_FEATURES=list(STAGES), USE_CHECKPOINT=False,
        )
    )  # fmt: skip


@BACKBONE_REGISTRY.register()
def build_swin_backbone(cfg: CfgNode, input_shape: Optional[ShapeSpec] = None) -> D2SwinBackbone:
    """Build `MODEL.BACKBONE.NAME: build_swin_backbone` from `MODEL.SWIN`, as `D2SwinTransformer`."""
    swin = cfg.MODEL.SWIN
    return D2SwinBackbone(
        out_features=swin.OUT_FEATURES,
        pretrain_img_size=swin.PRETRAIN_IMG_SIZE,
        in_channels=3 if input_shape is None else input_shape.channels,
        patch_size=swin.PATCH_SIZE,
        embed_dims=swin.EMBED_DIM,
        depths=swin.DEPTHS,
        num_heads=swin.NUM_HEADS,
        window_size=swin.WINDOW_SIZE,
        mlp_ratio=swin.MLP_RATIO,
        qkv_bias=swin.QKV_BIAS,
        qk_scale=swin.QK_SCALE,
        drop_rate=swin.DROP_RATE,
        attn_drop_rate=swin.ATTN_DROP_RATE,
        drop_path_rate=swin.DROP_PATH_RATE,
        use_abs_pos_embed=swin.APE,
        patch_norm=swin.PATCH_NORM,
        with_cp=swin.USE_CHECKPOINT,
    )


@BACKBONE_REGISTRY.register()
def build_swin_fpn_backbone(cfg: CfgNode, input_shape: Optional[ShapeSpec] = None) -> FPN:
    """Build a feature pyramid on the backbone, as `build_resnet_fpn_backbone`, for Faster and Mask R-CNN."""
    return FPN(
        bottom_up=build_swin_backbone(cfg, input_shape),
        in_features=cfg.MODEL.FPN.IN_FEATURES,
        out_channels=cfg.MODEL.FPN.OUT_CHANNELS,
        norm=cfg.MODEL.FPN.NORM,
        top_block=LastLevelMaxPool(),
        fuse_type=cfg.MODEL.FPN.FUSE_TYPE,
    )
