"""What mmdet calls of panopticapi, for an environment without panopticapi, which is not on PyPI.

mmdet's CocoPanopticMetric matches the segments itself. Formula: Kirillov et al., Panoptic Segmentation, CVPR 2019.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, wraps
from importlib.util import find_spec
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ..after_import import call_after_import
from .mmcv_ops import STAND_INS_SWITCH

VOID, OFFSET = 0, 1 << 24  # the id of pixels without a segment, and the number of ids in a PNG


@dataclass
class PanopticCounts:
    """Of a category: matched segments with their sum of IoU, and other predictions and labels."""

    iou: float = 0.0
    tp: int = 0
    fp: int = 0
    fn: int = 0


class PQStat:
    """Counts by category id."""

    def __init__(self) -> None:
        self.counts: dict[int, PanopticCounts] = defaultdict(PanopticCounts)

    def __getitem__(self, category: int) -> PanopticCounts:
        return self.counts[category]

    def __iadd__(self, other: 'PQStat') -> 'PQStat':
        for category, counts in other.counts.items():
            self.counts[category] = PanopticCounts(
                *(a + b for a, b in zip(vars(self[category]).values(), vars(counts).values()))
            )
        return self

    def pq_average(self, categories: Mapping[int, Any], isthing: Optional[bool]) -> tuple[dict[str, Any], Any]:
        """Return the means over categories with segments and their number `n`, and the values of each category.

        Args:
            isthing: value of the counted categories. None: all.
        """
        values = {}
        for category_id in (key for key, category in categories.items() if isthing in (None, category['isthing'] == 1)):
            counts = self[category_id]
            denominator = counts.tp + (counts.fp + counts.fn) / 2
            pq, sq, rq = counts.iou / (denominator or 1), counts.iou / (counts.tp or 1), counts.tp / (denominator or 1)
            values[category_id] = dict(pq=pq, sq=sq, rq=rq)
        counted = [counts for category_id, counts in values.items() if self[category_id] != PanopticCounts()]
        means = {name: sum(counts[name] for counts in counted) / (len(counted) or 1) for name in ('pq', 'sq', 'rq')}
        return dict(means, n=len(counted)), values


def rgb2id(pixels_HW3: NDArray[Any]) -> NDArray[Any]:
    """Return the ids of the colours, R + 256 G + 65536 B."""
    red_HW, green_HW, blue_HW = np.moveaxis(pixels_HW3.astype(np.int32), -1, 0)
    ids_HW: NDArray[Any] = red_HW + 256 * green_HW + 65536 * blue_HW
    return ids_HW


def id2rgb(ids_HW: NDArray[Any]) -> NDArray[Any]:
    """Return the colours of ids, uint8."""
    return np.stack([ids_HW, ids_HW // 256, ids_HW // 65536], axis=-1).astype(np.uint8)


def give_functions_to_mmdet() -> None:
    """Let mmdet's metric and reader of panoptic labels use this file, if there is no panopticapi.

    They get names in mmdet's modules: no module is called panopticapi. `SWIN_BACKBONE_STAND_INS=0` switches this off.
    """
    if os.environ.get(STAND_INS_SWITCH) != '0' and find_spec('panopticapi') is None:
        for name in ('evaluation.functional.panoptic_utils', 'evaluation.metrics.coco_panoptic_metric'):
            call_after_import(f'mmdet.{name}', partial(_fill_names, f'mmdet.{name}'))
        call_after_import('mmdet.datasets.transforms.loading', _give_function_to_reader)


def _fill_names(name: str) -> None:
    """Fill the names that are None in a module without panopticapi."""
    names = vars(sys.modules[name])
    functions = dict(
        panopticapi=sys.modules[__name__], VOID=VOID, OFFSET=OFFSET, PQStat=PQStat, rgb2id=rgb2id, id2rgb=id2rgb
    )
    names.update({key: value for key, value in functions.items() if names.get(key, ...) is None})


def _give_function_to_reader() -> None:
    """Replace the constructor of mmdet's reader, which imports panopticapi."""
    from mmdet.datasets.transforms.loading import LoadAnnotations, LoadPanopticAnnotations

    @wraps(LoadPanopticAnnotations.__init__)
    def construct(self: Any, **settings: Any) -> None:
        LoadAnnotations.__init__(self, **{'with_mask': True, 'with_seg': True, **settings})
        self.rgb2id = rgb2id

    LoadPanopticAnnotations.__init__ = construct
