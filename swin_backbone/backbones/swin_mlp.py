"""Swin-MLP, the all-MLP variant of microsoft/Swin-Transformer (models/swin_mlp.py), as a backbone."""

from collections.abc import Sequence
from typing import Any, Optional, Union

from mmengine.registry import MODELS

from ..archs import ARCHS_MLP
from ..layers import SwinMLPBlock
from ..ops.plan import StripTokens
from . import arguments
from .pyramid import PyramidSettings, SwinPyramid


@MODELS.register_module()
class SwinMLPBackbone(SwinPyramid):
    """Swin-MLP for detection and segmentation: where Swin attends, a linear layer mixes the places of a window.

    Each head has one such layer for all of its channels, and no two windows differ: there is no mask and no position
    bias, and padding, which is zeros, adds nothing. Windows shift by padding: those of side w, shifted by w // 2, begin
    w - w // 2 places before the map. Parameters are named as in `SwinBackbone`, `spatial_mlp` as in the official code.
    The arguments mean what they mean in `SwinBackbone`, but for:

    Args:
        pretrain_img_size: see `SwinBackbone`.
        window_size: see `SwinBackbone`; the published weights have 8, those of 'base' 7, and load into no other.
        num_heads: groups of channels with a mixing layer each, in each stage.
        arch: a published size, one of `swin_backbone.ARCHS_MLP`; an explicit argument beats it.
        small_map: 'pad': windows shift on every map; 'shrink': not on one that is no larger than the window on some
            side, as in microsoft/Swin-Transformer's classifiers. Either way it is padded up to the window.

    Raises:
        ValueError, TypeError: for an argument out of its range or of the wrong type, naming it.
    """

    def __init__(
        self,
        *,
        pretrain_img_size: Union[int, Sequence[int]] = 256,
        in_channels: int = 3,
        embed_dims: Optional[int] = None,
        patch_size: Union[int, Sequence[int]] = 4,
        window_size: Union[int, Sequence] = 8,
        mlp_ratio: float = 4,
        depths: Optional[Sequence[int]] = None,
        num_heads: Optional[Sequence[int]] = None,
        strides: Sequence[int] = (4, 2, 2, 2),
        out_indices: Sequence[int] = (0, 1, 2, 3),
        patch_norm: bool = True,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        use_abs_pos_embed: bool = False,
        act_cfg: dict = dict(type='GELU'),  # noqa: B006 - the toolboxes' own way to write a config
        norm_cfg: dict = dict(type='LN'),  # noqa: B006
        with_cp: bool = False,
        frozen_stages: int = -1,
        init_cfg: Optional[dict] = None,
        arch: Optional[str] = None,
        small_map: str = 'pad',
        strip_tokens: StripTokens = 'auto',
    ):
        checked = arguments.check(locals(), ARCHS_MLP)
        without_attention = dict(attn_drop_rate=0.0, mask_padding=False, attention_backend='sdpa')

        def make_block(stage: int, index: int, **block: Any) -> SwinMLPBlock:
            return SwinMLPBlock(**block)

        super().__init__(
            PyramidSettings.of({**checked, **without_attention}),
            arch=checked['arch'],
            window_sizes=checked['window_size'],
            make_block=make_block,
            merging_first=False,
            post_norm=False,
        )
