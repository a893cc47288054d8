"""A check of masks before pycocotools reads them: a wrong polygon or RLE makes it read and write outside of its memory.

The file imports only numpy.
"""

import re
import reprlib
from functools import lru_cache
from itertools import accumulate
from typing import Any, Optional, Union

import numpy as np

NO_MASK = 'objects without a segmentation, in a config that trains or tests on masks'
BAD_POLYGON = 'objects with a polygon that pycocotools cannot draw'
SHORT_POLYGON = 'objects with a polygon that is not three points or more, an x and a y each'
BAD_RLE = 'objects with an RLE that pycocotools cannot read'

LONGEST = 6  # characters of a run length of 30 bits, as an `int` of C takes

Fault = Optional[tuple[str, str]]  # the kind of fault of an object's mask, and the reason; None for a good mask

_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 80


def find_mask_fault(segmentation: Any, size: tuple[int, int]) -> Fault:
    """Return the fault of an object's mask.

    Args:
        segmentation: a list of polygons or an RLE.
        size: height and width of the picture.
    """
    if segmentation is None or segmentation == []:
        return NO_MASK, 'has none'
    if isinstance(segmentation, dict):
        reason = _find_rle_fault(segmentation, size)
        return (BAD_RLE, reason) if reason else None
    if not isinstance(segmentation, list):
        return BAD_POLYGON, f'must be a list of lists of numbers, got {_shorten.repr(segmentation)}'
    for polygon in segmentation:
        reason = _find_polygon_fault(polygon, max(size))
        if reason:
            return BAD_POLYGON, reason
    # pycocotools takes four numbers for a box. mmdet leaves such polygons out of training, COCO's evaluation does not.
    short = next((polygon for polygon in segmentation if len(polygon) < 6 or len(polygon) % 2), None)
    return None if short is None else (SHORT_POLYGON, f'has one of {len(short)} numbers')


def _find_polygon_fault(polygon: Any, side: int) -> Optional[str]:
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


def _find_rle_fault(rle: dict[str, Any], size: tuple[int, int]) -> Optional[str]:
    """Return why an RLE cannot be decoded."""
    stated, counts = rle.get('size'), rle.get('counts')
    if not isinstance(stated, (list, tuple)) or set(map(type, stated)) != {int} or tuple(stated) != tuple(size):
        return f'has the size {_shorten.repr(stated)}, its picture is {list(size)} (height, width)'
    if isinstance(counts, (str, bytes)):
        runs = decode_run_lengths(counts)
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


def decode_run_lengths(counts: Union[str, bytes], longest: int = LONGEST) -> Optional[list[int]]:
    """Return the run lengths of a compressed RLE; None for an invalid RLE, or a length of too many characters.

    A character from '0' to 'o' has five bits of a length, and a sixth if the length goes on. From the fourth on, a
    length is a difference to the last but one (pycocotools' rleFrString).

    Args:
        longest: characters of a length.
    """
    data = counts.encode(errors='surrogatepass') if isinstance(counts, str) else counts
    if not re.fullmatch(b'(?:[P-o]{0,%d}[0-O])+' % (longest - 1), data):
        return None
    runs = [*map(_decode_length, re.findall(b'[P-o]*[0-O]', data))]
    runs[1::2] = accumulate(runs[1::2])
    runs[2::2] = accumulate(runs[2::2])
    return runs


@lru_cache(2**16)
def _decode_length(code: bytes) -> int:
    """Return a number whose characters have five bits each, the least significant first; the last has the sign."""
    value = sum((character - ord('0') & 31) << 5 * place for place, character in enumerate(code))
    return value - (1 << 5 * len(code)) if code[-1] - ord('0') & 16 else value
