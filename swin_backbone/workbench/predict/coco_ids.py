"""Ids of pictures and categories in the user's COCO JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ...checks import LARGEST_FILE, DataError
from ..data.text_files import read_text

if TYPE_CHECKING:
    from .predictor import Predictor


class CocoIds:
    """The ids of a COCO JSON, by names of files and classes.

    Args:
        path: the JSON. Its annotations are not read.
        predictor: the predictor of a detector.

    Attributes:
        images: ids of images, by the parts of file_name.
        categories: ids of the model's classes, by label.

    Raises:
        ValueError: for a predictor of another model.
        DataError: if the file lacks images or categories, or has no category for a class.
    """

    def __init__(self, path: str, predictor: Predictor):
        if predictor.scope != 'mmdet':
            raise ValueError('--annotations takes a detector: results of other models have no ids')
        self.path = path
        classes = predictor.meta['classes']
        try:
            content = json.loads(read_text(path, LARGEST_FILE))
            ids = {category['name']: category['id'] for category in content['categories']}
            self.images: dict[tuple[str, ...], int] = {
                PurePosixPath(image['file_name'].replace('\\', '/')).parts: image['id'] for image in content['images']
            }
        except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise DataError(f"{path} is no JSON with images and categories in COCO's format") from error
        missing = [name for name in classes if name not in ids]
        if missing:
            raise DataError(f'{path} has no category {missing[0]!r} of the model; it has {", ".join(ids)}')
        self.categories = [ids[name] for name in classes]

    def find_id(self, picture: Path) -> int:
        """Return the id of the image with whose file_name the path of a picture ends. The longest file_name counts.

        Raises:
            DataError: if no file_name ends the path.
        """
        parts = picture.absolute().parts
        for begin in range(len(parts)):
            if parts[begin:] in self.images:
                return self.images[parts[begin:]]
        raise DataError(f'--annotations: {self.path} has no image with the file_name of {picture}')

    def require_all(self, pictures: Sequence[Path]) -> None:
        """Raise DataError if a picture has no id, or two pictures share an id."""
        names: dict[int, Path] = {}
        for picture in pictures:
            other = names.setdefault(self.find_id(picture), picture)
            if other != picture:
                raise DataError(f'--annotations: {other} and {picture} are one image of {self.path}')
