"""The modules that make up a backbone. Parameter names are those of mmdet's, mmseg's and mmpretrain's Swin."""

from .patch_embed import PatchEmbed
from .patch_merging import PatchMerging, normalised_output, write_normalised_output
from .snapshot import is_unmodified, known_layer, take_snapshot
from .swin_block import SwinBlock
from .swin_mlp_block import SwinMLPBlock
from .swin_v2_block import SwinV2Block

__all__ = [
    'PatchEmbed',
    'PatchMerging',
    'SwinBlock',
    'SwinMLPBlock',
    'SwinV2Block',
    'is_unmodified',
    'known_layer',
    'normalised_output',
    'take_snapshot',
    'write_normalised_output',
]
