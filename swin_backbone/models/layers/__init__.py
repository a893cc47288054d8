"""The modules of a backbone. Parameter names are equal to mmdet's, mmseg's and mmpretrain's Swin."""

from .block import SwinBlock
from .patches import PatchEmbed, PatchMerging
from .swin_mlp_block import SwinMLPBlock
from .swin_v2_block import SwinV2Block

__all__ = ['PatchEmbed', 'PatchMerging', 'SwinBlock', 'SwinMLPBlock', 'SwinV2Block']
