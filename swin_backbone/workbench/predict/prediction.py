"""The prediction for a picture, as numpy arrays. Toolboxes are imported by what makes it."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mmengine.structures import BaseDataElement

    from ..data.media import Frame
    from .predictor import Predictor

INSTANCE_OFFSET = 1000  # mmdet's number of a segment is class + 1000 * instance


class Prediction:
    """The prediction for a picture, made by `Model.predict`. n objects have scores from `score_thr` on, best first.

    Attributes:
        path: path of the picture; None for pixels.
        boxes: (n, 4) float32, x1 y1 x2 y2 in pixels of the picture; (0, 4) for a model without objects.
        scores: (n,) float32; for a classifier, of all classes.
        labels: (n,) int64, indices of `classes`.
        names: names of the n classes.
        masks: (n, H, W) bool; None for a model without masks.
        label_map: (H, W) int64, the class of each pixel; None for a model without these.
        drawn: the picture with the prediction, (H, W, 3) uint8 RGB, drawn at the first access.
        classes: names of all classes, by label.
        score_thr: lowest score of an object.
        sample: the toolbox's data sample, with all scores, on the CPU.
    """

    def __init__(self, path: Optional[str], sample: BaseDataElement, frame: Frame, predictor: Predictor, thr: float):
        self.path, self.sample, self.score_thr = path, sample.cpu(), thr
        self.classes: tuple[str, ...] = tuple(predictor.meta['classes'])
        self._frame, self._predictor = frame, predictor
        self.boxes: NDArray[Any] = np.zeros((0, 4), np.float32)
        self.scores: NDArray[Any] = np.zeros(0, np.float32)
        self.labels: NDArray[Any] = np.zeros(0, np.int64)
        self.masks: Optional[NDArray[Any]] = None
        self.label_map = label_map_of(self.sample)
        if 'pred_instances' in self.sample:
            objects = self.sample.pred_instances
            order = objects.scores.argsort(descending=True, stable=True)
            objects = objects[order[objects.scores[order] >= thr]]
            self.scores, self.labels = objects.scores.float().numpy(), objects.labels.numpy()
            if 'bboxes' in objects:
                self.boxes = objects.bboxes.float().numpy()
            if 'masks' in objects:
                self.masks = objects.masks.numpy().astype(bool)
        elif 'pred_score' in self.sample:
            scores, labels = self.sample.pred_score.float().sort(descending=True, stable=True)
            self.scores, self.labels = scores.numpy(), labels.numpy()
        self.names = [self.classes[label] for label in self.labels]

    @cached_property
    def drawn(self) -> NDArray[Any]:
        return self.draw()

    def draw(self, score_thr: Optional[float] = None) -> NDArray[Any]:
        """Return the picture with the prediction, (H, W, 3) uint8 RGB.

        Args:
            score_thr: lowest score of a drawn object. Default: `score_thr` of the prediction.
        """
        thr = self.score_thr if score_thr is None else score_thr
        return np.ascontiguousarray(self._predictor.draw(self._frame, self.sample, thr)[..., ::-1])

    def __repr__(self) -> str:
        height, width = self._frame.size
        parts = [f'{self.path or "pixels"!s}', f'{width}x{height}']
        if 'pred_score' in self.sample:
            parts.append(f'{self.names[0]} {self.scores[0]:.2f}')
        elif 'pred_instances' in self.sample:
            counts = ', '.join(f'{number} {name}' for name, number in Counter(self.names).most_common())
            parts.append(f'{len(self.names)} objects' + (f': {counts}' if counts else ''))
        if self.label_map is not None:
            labels, counts_K = np.unique(self.label_map, return_counts=True)
            order = counts_K.argsort()[::-1][:5]
            names = (*self.classes, 'background')  # the number behind the classes, of panoptic heads
            shares = (f'{names[labels[index]]} {counts_K[index] / self.label_map.size:.0%}' for index in order)
            parts.append(', '.join(shares))
        return f'Prediction({"; ".join(parts)})'


def label_map_of(sample: BaseDataElement) -> Optional[NDArray[Any]]:
    """Return the class of each pixel, (H, W) int64, of a segmentor or panoptic head; None for another model."""
    if 'pred_panoptic_seg' in sample:
        segments_HW: NDArray[Any] = sample.pred_panoptic_seg.sem_seg[0].cpu().numpy().astype(np.int64)
        return segments_HW % INSTANCE_OFFSET
    if 'pred_sem_seg' in sample:
        labels_HW: NDArray[Any] = sample.pred_sem_seg.data[0].cpu().numpy().astype(np.int64)
        return labels_HW
    return None
