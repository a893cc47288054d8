"""Pictures larger than memory: in tiles that overlap, resumable, and in several processes."""

from .objects import crop_of_rle
from .readers import open_picture
from .run import Finished, Progress, TiledInference, infer_tiled

__all__ = ['Finished', 'Progress', 'TiledInference', 'crop_of_rle', 'infer_tiled', 'open_picture']
