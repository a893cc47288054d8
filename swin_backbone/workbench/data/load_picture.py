"""The step of a pipeline that loads a picture, in training, tests and predictions alike."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional, Union

import cv2
import mmcv
import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine import fileio
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import TRANSFORMS, DefaultScope
from numpy.typing import NDArray

from ...openmmlab.config_files import add_custom_import
from ...openmmlab.config_parts import find_class, iter_parts
from .media import decode_picture, read_picture
from .rasters import is_tiff, read_tiff

LOADER = 'swin_backbone.LoadPicture'  # the class below, in a config
PICTURE_LOADERS, ANNOTATION_LOADERS = r'Load\w*Image', r'Load\w*Annotation|LoadProposals'  # names of classes


class LoadPicture(LoadImageFromFile):
    """mmcv's `LoadImageFromFile`, with the bands of a TIFF as they are stored, 'swin_backbone.LoadPicture' in configs.

    A TIFF is read by `read_tiff`, whatever the decoding backend but 'tifffile'. An item with `img`, BGR pixels (H, W,
    3) uint8 of a video or a tile, is not read from a file. Arguments: see mmcv.
    """

    def transform(self, item: dict[str, Any]) -> Optional[dict[str, Any]]:
        """Return the item with `img`, `img_shape` and `ori_shape`; None for an unreadable file with `ignore_empty`."""
        try:
            pixels = self.read(item['img_path']) if item.get('img') is None else self.convert_colours(item['img'])
        except Exception:
            if self.ignore_empty:
                return None
            raise
        item['img'] = pixels.astype(np.float32) if self.to_float32 else pixels
        item['img_shape'] = item['ori_shape'] = pixels.shape[:2]
        return item

    def read(self, path: Union[str, Path]) -> NDArray[Any]:
        """Return the pixels of a file. Raises OSError if they cannot be decoded."""
        path = str(path)
        if self.file_client_args is not None:
            data = fileio.FileClient.infer_client(self.file_client_args, path).get(path)
        else:
            data = fileio.get(path, backend_args=self.backend_args)
        return self.decode(data, path)

    def decode(self, data: bytes, name: str) -> NDArray[Any]:
        """Return the pixels of a file's contents. Raises OSError with the name if they cannot be decoded."""
        if is_tiff(data) and self.imdecode_backend != 'tifffile':
            return read_tiff(data, name, self.color_type)
        if self.color_type == 'color' and self.imdecode_backend == 'cv2':
            return decode_picture(data, name)
        try:
            pixels: Optional[NDArray[Any]] = mmcv.imfrombytes(data, flag=self.color_type, backend=self.imdecode_backend)
        except Exception as error:  # of many kinds
            raise OSError(f'{name} cannot be read as a picture: {error}') from error
        if pixels is None:
            raise OSError(f'{name} cannot be read as a picture')
        return pixels

    def convert_colours(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Return BGR pixels (H, W, 3) uint8, or those of `read`, maybe as (H, W, 1), in the colours of `read`."""
        if self.color_type.startswith('grayscale') and pixels.ndim == 3:
            return pixels[..., 0] if pixels.shape[2] == 1 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
        return pixels


def use_load_picture(cfg: Config) -> None:
    """Name `LoadPicture` in the place of mmcv's `LoadImageFromFile` in all pipelines of a config, in place.

    The config imports this package then.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for _, part in iter_parts(cfg):
            if 'Load' in str(part['type']) and _find_type(part) in (LoadImageFromFile, LoadPicture):
                part['type'] = LOADER
    if any(part['type'] == LOADER for _, part in iter_parts(cfg)):
        add_custom_import(cfg)


def loads_picture(step: Any) -> bool:
    """Return whether a step of a pipeline, or its config in the current scope, loads pictures."""
    return _is_named(step, PICTURE_LOADERS)


def loads_annotations(step: Any) -> bool:
    """Return whether a step of a pipeline, or its config in the current scope, loads annotations."""
    return _is_named(step, ANNOTATION_LOADERS)


def find_loading_step(dataset: BaseDataset) -> Any:
    """Return the step of a data set that loads its pictures; None without one."""
    return next((step for step in dataset.pipeline.transforms if loads_picture(step)), None)


def find_reader(dataset: BaseDataset) -> Callable[[Path], NDArray[Any]]:
    """Return the function that reads a picture's file as a data set does; `read_picture` for a foreign loader."""
    step = find_loading_step(dataset)
    return step.read if isinstance(step, LoadPicture) else read_picture


def drops_bits(step: Any) -> bool:
    """Return whether a step reduces a picture to 8 bits, and to the bands of a colour."""
    return getattr(step, 'color_type', 'unchanged') != 'unchanged' and step.imdecode_backend != 'tifffile'


def _is_named(step: Any, pattern: str) -> bool:
    cls = _find_type(step) if isinstance(step, dict) else type(step)
    return any(re.match(pattern, base.__name__) for base in getattr(cls, '__mro__', ()))


def _find_type(step: dict[str, Any]) -> Optional[type]:
    try:
        return find_class(step, TRANSFORMS)
    except Exception:  # of an unknown name: building the pipeline raises an error with the key
        return None
