"""The modules a backbone is built of. Parameters are named as mmdet's, mmseg's and mmpretrain's Swin names them."""

from .block import SwinBlock
from .block_v2 import SwinV2Block
from .patches import PatchEmbed, PatchMerging, normalised_output
from .published import is_watched

__all__ = ['PatchEmbed', 'PatchMerging', 'SwinBlock', 'SwinV2Block', 'is_watched', 'normalised_output']
