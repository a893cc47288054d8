"""What mmdet calls of panopticapi, for an environment without panopticapi, which is not on PyPI.

mmdet's CocoPanopticMetric matches the segments itself. Formula: Kirillov et al., Panoptic Segmentation, CVPR 2019.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .mmcv_ops import SWITCH

VOID, OFFSET = 0, 1 << 24  # the id of pixels without a segment, and the number of ids in a PNG


@dataclass
class Counts:
    """Of a category: matched segments with their sum of IoU, and other predictions and labels."""

    iou: float = 0.0
    tp: int = 0
    fp: int = 0
    fn: int = 0


class PQStat:
    """Counts by category id."""

    def __init__(self) -> None:
        self.counts: dict[int, Counts] = defaultdict(Counts)

    def __getitem__(self, category: int) -> Counts:
        return self.counts[category]

    def __iadd__(self, other: 'PQStat') -> 'PQStat':
        for category, more in other.counts.items():
            self.counts[category] = Counts(*(a + b for a, b in zip(vars(self[category]).values(), vars(more).values())))
        return self

    def pq_average(self, categories: Mapping[int, Any], isthing: Optional[bool]) -> tuple[dict[str, Any], Any]:
        """Return the means over categories with segments and their number `n`, and the values of each category.

        Args:
            isthing: of the counted categories. None: all.
        """
        values = {}
        for number in (key for key, one in categories.items() if isthing in (None, one['isthing'] == 1)):
            one = self[number]
            whole = one.tp + (one.fp + one.fn) / 2
            pq, sq, rq = one.iou / (whole or 1), one.iou / (one.tp or 1), one.tp / (whole or 1)
            values[number] = dict(pq=pq, sq=sq, rq=rq)
        counted = [one for number, one in values.items() if self[number] != Counts()]
        means = {name: sum(one[name] for one in counted) / (len(counted) or 1) for name in ('pq', 'sq', 'rq')}
        return dict(means, n=len(counted)), values


def rgb2id(pixels_HW3: NDArray[Any]) -> NDArray[Any]:
    """Return the ids of the colours, R + 256 G + 65536 B."""
    red_HW, green_HW, blue_HW = np.moveaxis(pixels_HW3.astype(np.int32), -1, 0)
    ids_HW: NDArray[Any] = red_HW + 256 * green_HW + 65536 * blue_HW
    return ids_HW


def id2rgb(ids_HW: NDArray[Any]) -> NDArray[Any]:
    """Return the colours of ids, uint8."""
    return np.stack([ids_HW, ids_HW // 256, ids_HW // 65536], axis=-1).astype(np.uint8)


def put_in_place() -> None:
    """Let this file be panopticapi, if there is none. `SWIN_BACKBONE_STAND_INS=0` switches this off."""
    if os.environ.get(SWITCH) == '0' or find_spec('panopticapi') is not None:
        return
    for name in ('panopticapi', 'panopticapi.evaluation', 'panopticapi.utils'):
        module: Any = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, origin=__name__, is_package='.' not in name)
        module.__path__ = []
        vars(module).update(VOID=VOID, OFFSET=OFFSET, PQStat=PQStat, rgb2id=rgb2id, id2rgb=id2rgb)
        sys.modules[name] = module
    for name in ('evaluation', 'utils'):
        setattr(sys.modules['panopticapi'], name, sys.modules[f'panopticapi.{name}'])
