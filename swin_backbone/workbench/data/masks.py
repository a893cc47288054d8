"""A check of masks before pycocotools reads them: a wrong polygon or RLE makes it read and write outside of its memory.

The file imports only numpy.
"""

import math
import reprlib
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

NO_MASK = 'objects without a segmentation, in a config that trains or tests on masks'
BAD_POLYGON = 'objects with a polygon that pycocotools cannot draw'
SHORT_POLYGON = 'objects with a polygon that is not three points or more, an x and a y each'
BAD_RLE = 'objects with an RLE that pycocotools cannot read'

CODES = bytes(range(ord('0'), ord('0') + 64))  # characters of a compressed RLE: six bits each
LAST_CODES = CODES[:32]  # the last character of a run length
LONGEST = 6  # characters of a run length of 30 bits, as an `int` of C takes
GROUP = 256  # RLEs that are decoded together

Fault = Optional[tuple[str, str]]  # the kind of fault of an object's mask, and the reason; None for a good mask

_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 80


def find_mask_faults(masks: Sequence[tuple[Any, tuple[int, int]]]) -> list[Fault]:
    """Return `find_mask_fault` of masks with their sizes: in a tenth of the time, if most are compressed RLEs."""
    is_good = np.zeros(len(masks), bool)
    for begin in range(0, len(masks), GROUP):
        group = enumerate(masks[begin : begin + GROUP], begin)
        compressed = {row: counts for row, mask in group if (counts := _find_compressed_counts(*mask))}
        if compressed:
            pixels = [math.prod(masks[row][1]) for row in compressed]
            is_good[[*compressed]] = _add_up([*compressed.values()], pixels)
    return [None if good else find_mask_fault(*mask) for good, mask in zip(is_good, masks)]


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
    counts = rle.get('counts')
    if not _has_size(rle, size):
        return f'has the size {_shorten.repr(rle.get("size"))}, its picture is {list(size)} (height, width)'
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


def _has_size(rle: dict[str, Any], size: tuple[int, int]) -> bool:
    stated = rle.get('size')
    return isinstance(stated, (list, tuple)) and set(map(type, stated)) == {int} and list(stated) == list(size)


def run_lengths(counts: Union[str, bytes], longest: int = LONGEST) -> Optional[list[int]]:
    """Return the run lengths of a compressed RLE; None for an invalid RLE, or a length of too many characters.

    Args:
        longest: characters of a length.
    """
    data = _to_codes(counts)
    if data is None:
        return None
    runs, _, is_long = _decode([data], longest)
    lengths: list[int] = runs.tolist()
    return None if is_long[0] else lengths


def _to_codes(counts: Union[str, bytes]) -> Optional[bytes]:
    """Return the characters of a compressed RLE; None if some are wrong."""
    data = counts.encode(errors='surrogatepass') if isinstance(counts, str) else counts
    return data if data and data[-1] in LAST_CODES and not data.translate(None, CODES) else None


def _find_compressed_counts(segmentation: Any, size: tuple[int, int]) -> Optional[bytes]:
    """Return the characters of a compressed RLE of a size; None for anything else."""
    if isinstance(segmentation, dict) and _has_size(segmentation, size):
        counts = segmentation.get('counts')
        return _to_codes(counts) if isinstance(counts, (str, bytes)) else None
    return None


def _add_up(counts: Sequence[bytes], pixels: Sequence[int]) -> NDArray[np.bool_]:
    """Return whether the run lengths of each compressed RLE are possible, and add up to its number of pixels."""
    runs, begins, is_long = _decode(counts)
    is_whole = np.add.reduceat(runs, begins) == pixels
    # No longer than the mask: a sum of longer ones may exceed 64 bits
    is_possible = (np.minimum.reduceat(runs, begins) >= 0) & (np.maximum.reduceat(runs, begins) <= pixels)
    num_runs = np.diff(begins, append=len(runs))
    good: NDArray[np.bool_] = is_whole & is_possible & ~is_long & (num_runs <= np.add(pixels, 1))
    return good


def _decode(
    counts: Sequence[bytes], longest: int = LONGEST
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the run lengths of compressed RLEs, one after the other, the begin of each, and whether one is too long.

    A length is some characters of five bits, least significant first. A sixth bit marks that another follows; the last
    has the sign. From the fourth on, a length is a difference to the last but one (pycocotools' rleFrString).

    Args:
        counts: see `_to_codes`.
        longest: characters of a length.
    """
    codes = np.frombuffer(b''.join(counts), np.uint8).astype(np.int64) - CODES[0]
    is_last = codes < len(LAST_CODES)
    starts = np.append(0, np.flatnonzero(is_last)[:-1] + 1)  # where the run lengths begin
    characters = np.diff(starts, append=len(codes))
    place = np.arange(len(codes)) - starts.repeat(characters)
    steps = np.add.reduceat((codes & 31) << 5 * place, starts) - ((codes[is_last] >> 4) << 5 * characters)
    begins = np.searchsorted(starts, np.cumsum([0, *map(len, counts[:-1])]))
    lengths = np.diff(begins, append=len(steps))
    index = np.arange(len(steps)) - begins.repeat(lengths)
    runs = steps.copy()
    for first in (1, 2):
        is_kind = (index >= first) & (index % 2 == first % 2)
        sums = np.where(is_kind, steps, 0).cumsum()
        runs = np.where(is_kind, sums - sums[begins].repeat(lengths), runs)
    return runs, begins, np.maximum.reduceat(characters, begins) > longest
