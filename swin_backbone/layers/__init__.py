"""The modules a backbone is built of. Parameters are named as mmdet's and mmseg's Swin names them."""

from .block import SwinBlock
from .patches import PatchEmbed, PatchMerging, normalised_output

__all__ = ['PatchEmbed', 'PatchMerging', 'SwinBlock', 'normalised_output']
