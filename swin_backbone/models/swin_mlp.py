"""Swin-MLP, the all-MLP variant of microsoft/Swin-Transformer (models/swin_mlp.py), as a backbone."""

from typing import Annotated, Any, Optional

from mmengine.registry import MODELS

from ..archs import ARCHS_MLP
from . import arguments as takes
from .layers import SwinMLPBlock
from .pyramid import SwinPyramid
from .ranges import choice, or_none


@MODELS.register_module()
class SwinMLPBackbone(SwinPyramid):
    """Swin-MLP for detection and segmentation: a linear layer over the places of a window replaces attention.

    Each head has one such layer for all of its channels. All windows are treated alike: there is no mask and no
    position bias, and padding, which is zeros, adds nothing. Windows shift by padding: windows of side w, shifted by
    w // 2, begin w - w // 2 places before the map. Parameters are named as in `SwinBackbone`, and `spatial_mlp` as in
    the official code. Arguments that are not listed here are those of `SwinBackbone`.

    Args:
        pretrain_img_size: see `SwinBackbone`.
        window_size: see `SwinBackbone`. Published weights have window 8, or 7 for 'base'; they load into no other
            window.
        num_heads: groups of channels in each stage; each group has its own mixing layer.
        patch_norm: whether the patch embedding has a norm. Patch merging always has one, as in
            microsoft/Swin-Transformer.
        arch: a published size, one of `swin_backbone.ARCHS_MLP`; explicit embed_dims, depths and num_heads override it.
        small_map: 'pad': windows shift on every map. 'shrink': they do not shift on a map with a side no longer than
            the window's, as in microsoft/Swin-Transformer's classifiers. In both cases a small map is padded to the
            window.

    Raises:
        ValueError, TypeError: for an argument out of its range or of the wrong type. The message names it.
    """

    @takes.refuse_renamed
    def __init__(
        self,
        *,
        pretrain_img_size: takes.Pair = 256,
        in_channels: takes.Positive = 3,
        embed_dims: takes.Width = None,
        patch_size: takes.Pair = 4,
        window_size: takes.Windows = 8,
        mlp_ratio: takes.MLPRatio = 4,
        depths: takes.OneAStage = None,
        num_heads: takes.OneAStage = None,
        strides: takes.Strides = (4, 2, 2, 2),
        out_indices: takes.Stages = (0, 1, 2, 3),
        patch_norm: takes.Flag = True,
        drop_rate: takes.Rate = 0.0,
        drop_path_rate: takes.Rate = 0.1,
        use_abs_pos_embed: takes.Flag = False,
        act_cfg: takes.Activation = dict(type='GELU'),  # noqa: B006 - the toolboxes' own way to write a config
        norm_cfg: takes.Norm = dict(type='LN'),  # noqa: B006
        with_cp: takes.Flag = False,
        frozen_stages: takes.FrozenStages = -1,
        init_cfg: takes.InitCfg = None,
        arch: Annotated[Optional[str], or_none(choice(*ARCHS_MLP))] = None,
        small_map: takes.SmallMap = 'pad',
        backend: takes.BackendName = 'auto',
    ):
        checked = takes.check(SwinMLPBackbone.__init__, locals(), ARCHS_MLP)
        checked.attn_drop_rate, checked.mask_padding = 0.0, False  # there is no attention

        def make_block(stage: int, index: int, **block: Any) -> SwinMLPBlock:
            return SwinMLPBlock(**block)

        super().__init__(checked, make_block=make_block, merging_first=False, post_norm=False)
