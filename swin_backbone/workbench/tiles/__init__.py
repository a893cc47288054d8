"""Pictures larger than memory: in tiles that overlap, resumable, and in several processes."""

from .objects import crop_of_rle
from .readers import open_picture
from .run import TiledInference

__all__ = ['TiledInference', 'crop_of_rle', 'open_picture']
