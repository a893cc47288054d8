"""A check of masks before pycocotools reads them: a wrong polygon or RLE makes it read and write outside of its memory.

The file imports numpy alone.
"""

import reprlib
from typing import Any, Optional, Union

import numpy as np

NO_MASK = 'objects without a segmentation, in a config that trains or tests on masks'
BAD_POLYGON = 'objects with a polygon that pycocotools cannot draw'
SHORT_POLYGON = 'objects with a polygon that is not three points or more, an x and a y each'
BAD_RLE = 'objects with an RLE that pycocotools cannot read'

_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 80


def mask_fault(segmentation: Any, size: tuple[int, int]) -> Optional[tuple[str, str]]:
    """Return the kind of fault of an object's mask, and the reason; None for a good mask.

    Args:
        segmentation: a list of polygons or an RLE.
        size: height and width of the picture.
    """
    if segmentation is None or segmentation == []:
        return NO_MASK, 'has none'
    if isinstance(segmentation, dict):
        reason = _rle_fault(segmentation, size)
        return (BAD_RLE, reason) if reason else None
    if not isinstance(segmentation, list):
        return BAD_POLYGON, f'must be a list of lists of numbers, got {_shorten.repr(segmentation)}'
    for polygon in segmentation:
        reason = _polygon_fault(polygon, max(size))
        if reason:
            return BAD_POLYGON, reason
    # pycocotools takes four numbers for a box. mmdet leaves such polygons out of training, COCO's evaluation does not.
    short = next((polygon for polygon in segmentation if len(polygon) < 6 or len(polygon) % 2), None)
    return None if short is None else (SHORT_POLYGON, f'has one of {len(short)} numbers')


def _polygon_fault(polygon: Any, side: int) -> Optional[str]:
    """Return why a polygon cannot be drawn. An `int` of C holds five times each coordinate, which mmdet may magnify.

    Args:
        side: the longer side of the picture.
    """
    try:
        points = np.asarray(polygon)
    except ValueError:  # lists of several lengths
        points = np.empty((0, 0))
    if points.ndim != 1 or points.dtype.kind not in 'iuf':
        return f'must be a list of lists of numbers, got {_shorten.repr(polygon)}'
    if len(points) and not (-side <= points.min() and points.max() <= 2 * side):  # also NaN
        return f"has {_shorten.repr(points.tolist())}: coordinates must be finite, and within twice the picture's size"
    return None


def _rle_fault(rle: dict[str, Any], size: tuple[int, int]) -> Optional[str]:
    """Return why an RLE cannot be decoded."""
    counts, stated = rle.get('counts'), rle.get('size')
    if not isinstance(stated, (list, tuple)) or set(map(type, stated)) != {int} or list(stated) != list(size):
        return f'has the size {_shorten.repr(stated)}, its picture is {list(size)} (height, width)'
    if isinstance(counts, (str, bytes)):
        runs = run_lengths(counts)
        if runs is None:
            return f'has counts that are no compressed RLE: {_shorten.repr(counts)}'
    elif isinstance(counts, list) and set(map(type, counts)) == {int}:
        runs = counts
    else:
        return f'has counts that are no whole numbers or string: {_shorten.repr(counts)}'
    pixels = size[0] * size[1]
    if len(runs) > pixels + 1 or min(runs) < 0 or sum(runs) != pixels:
        return f'has counts that do not add up to the {pixels} pixels of its size: {_shorten.repr(counts)}'
    return None


def run_lengths(counts: Union[str, bytes], longest: int = 6) -> Optional[list[int]]:
    """Return the run lengths of a compressed RLE; None for an invalid RLE, or a length of too many characters.

    A length is some characters of five bits, least significant first. A sixth bit marks that another follows; the last
    has the sign. From the fourth on, a length is a difference to the last but one (pycocotools' rleFrString).

    Args:
        longest: characters of a length; by default 30 bits, as in an `int` of C.
    """
    data = counts.encode(errors='surrogatepass') if isinstance(counts, str) else counts
    codes = np.frombuffer(data, np.uint8).astype(np.int64) - ord('0')
    is_last = codes < 32
    if not len(codes) or codes.min() < 0 or codes.max() > 63 or not is_last[-1]:
        return None
    begins = np.flatnonzero(np.append(True, is_last[:-1]))
    characters = np.diff(np.append(begins, len(codes)))
    if characters.max() > longest:
        return None
    place = np.arange(len(codes)) - begins.repeat(characters)
    runs = np.add.reduceat((codes & 31) << 5 * place, begins) - ((codes[is_last] >> 4) << 5 * characters)
    for first in (1, 2):
        runs[first::2] = runs[first::2].cumsum()
    lengths: list[int] = runs.tolist()
    return lengths
