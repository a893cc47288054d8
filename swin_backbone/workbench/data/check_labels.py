"""Labels of segmentation, a picture of class numbers each: reading, and errors in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from ...checks import DataError, list_first
from .media import require_complete

GREY_OR_PALETTE = ('1', 'L', 'P', 'I', 'I;16', 'I;16B')  # Pillow's modes of one channel of numbers


class LabelRule(NamedTuple):
    """The values that a label file may have.

    Args:
        num_classes: number of classes of the head; converted labels are below.
        ignore_index: the value of ignored pixels.
        reduce_zero_label: 0 in a file is ignored, and 1 is the first class.
        label_map: classes of the data set to those of the model: mmseg's word, and no (H, W) map as
            `Prediction.label_map`.
    """

    num_classes: int
    ignore_index: int = 255
    reduce_zero_label: bool = False
    label_map: Optional[dict[int, int]] = None

    def fit_to_item(self, item: dict[str, Any]) -> 'LabelRule':
        """Return the rule for an item of mmseg's data sets, which map values to classes."""
        return self._replace(reduce_zero_label=bool(item.get('reduce_zero_label')), label_map=item.get('label_map'))

    def map_values(self) -> NDArray[Any]:
        """Return the class in training of each value from 0 to 255, (256,)."""
        classes: NDArray[Any] = np.arange(256)
        if self.reduce_zero_label:
            classes = np.where(classes % 255 == 0, 255, classes - 1)
        mapped = classes.copy()
        for old, new in (self.label_map or {}).items():
            mapped[classes == old] = new
        return mapped

    def find_forbidden_values(self) -> NDArray[np.uint8]:
        """Return 1 for each value from 0 to 255 with neither class nor ignore_index, (256,) uint8."""
        classes = self.map_values()
        forbidden: NDArray[np.bool_] = (classes >= max(self.num_classes, 2)) & (classes != self.ignore_index)
        return forbidden.astype(np.uint8)

    def __str__(self) -> str:
        values = describe_values(np.flatnonzero(self.find_forbidden_values() == 0))
        return f'{self.num_classes} classes and ignore_index={self.ignore_index} allow {values}'


ANY_VALUE = LabelRule(256)


def describe_values(values: ArrayLike) -> str:
    """Return sorted numbers in words: 0 to 3, 7."""
    breaks = np.flatnonzero(np.diff(values) > 1) + 1
    runs = [(run[0], run[-1]) for run in np.split(np.asarray(values), breaks)]
    words = [f'{first} to {last}' if last > first else str(first) for first, last in runs]
    return list_first(words, 8)


def read_label(path: Path, rule: LabelRule, size: tuple[int, int]) -> NDArray[Any]:
    """Return the values of a label file, (H, W) uint8.

    Args:
        size: height and width of its picture.

    Raises:
        DataError: if the file cannot be read, is lossy or coloured, or has another size or a value without class.
    """
    with _open_label(path) as image:
        file_format, mode = image.format, image.mode
        values = np.asarray(image)
        values = values.astype(np.uint8) if mode == '1' else values
    if file_format == 'JPEG':
        raise DataError(f'the label {path} is a JPEG, which changes values: write labels as PNG')
    if mode not in GREY_OR_PALETTE:
        raise DataError(
            f'the label {path} has colours ({mode}), and a label has one channel, whose values are the classes. For '
            "--data, name the colours in a file labelmap.txt beside, as 'road:128,64,128::'"
        )
    if values.shape != size:
        raise DataError(
            f'the label {path} is {values.shape[1]}x{values.shape[0]}, and its picture {size[1]}x{size[0]} (width x '
            'height): they must be equal'
        )
    unique_values, counts = np.unique(values, return_counts=True)
    forbidden = rule.find_forbidden_values()
    wrong = [f'{n} ({c} pixels)' for n, c in zip(unique_values, counts) if not 0 <= n < 256 or forbidden[n]]
    if wrong:
        bits = ' It has 16 bits a pixel; toolboxes read the lower 8.' if unique_values[-1] > 255 else ''
        raise DataError(f'the label {path} has the values {list_first(wrong, 5)}; {rule}.{bits}')
    return values.astype(np.uint8)


def read_colours(path: Path) -> Optional[NDArray[np.int32]]:
    """Return the colours of a label file with colours or a palette, (H, W), 0xRRGGBB; None for one channel of numbers.

    Raises:
        DataError: if it cannot be read.
    """
    with _open_label(path) as image:
        if image.mode not in ('P', 'RGB', 'RGBA'):
            return None
        colours: NDArray[np.int32] = np.asarray(image.convert('RGB'), np.int32) @ (1 << 16, 1 << 8, 1)
    return colours


@contextmanager
def _open_label(path: Path) -> Iterator[Image.Image]:
    try:
        require_complete(path)
        with Image.open(path) as image:
            yield image
    except DataError:
        raise
    except (OSError, SyntaxError, ValueError) as error:
        reason = getattr(error, 'strerror', None) or str(error)
        about = '' if reason.startswith(str(path)) else f'{path} cannot be read: '
        raise DataError(f'the label {about}{reason}') from error


def has_8_bits(path: str) -> bool:
    """Return whether the header of a file is of a PNG with at most 8 bits a pixel, in grey or with a palette."""
    with open(path, 'rb') as file:
        header = file.read(26)
    return header.startswith(b'\x89PNG') and len(header) == 26 and header[24] <= 8 and header[25] in (0, 3)
