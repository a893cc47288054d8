"""The prediction for a picture, as numpy arrays. The predictor imports the toolboxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import cv2
import numpy as np
from numpy.typing import NDArray

from ..data.media import Frame, make_frame
from ..pictures.colours import encode_labels
from .thresholds import ScoreThr, list_thresholds

if TYPE_CHECKING:
    from mmengine.structures import BaseDataElement

    from .coco_ids import CocoIds
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
        category_ids: ids of all classes in COCO's format, by label, in this order of preference: of the `annotations`
            of `Model.predict`; of the training, in the checkpoint; COCO's own, for COCO's classes; 1, 2, ...
            Empty without a detector.
        image_id: id of the picture in `annotations`; None without these.
        masks: (n, H, W) bool; None for a model without masks.
        label_map: (H, W) int64, the class of each pixel; None for a model without these.
        segment_map: (H, W) int64, the `id` of `segments` at each pixel, or 0; None for a model that is not panoptic.
        segments: dicts of id, label, name and area in pixels; empty for a model that is not panoptic.
        drawn: the picture with the prediction, (H, W, 3) uint8 RGB, read from its file and drawn at the first access.
        classes: names of all classes, by label.
        score_thr: lowest score of an object, or of the objects of each class by its name.
        sample: the toolbox's data sample, with all scores, on the CPU.
    """

    def __init__(
        self,
        path: Optional[str],
        sample: BaseDataElement,
        frame: Frame,
        predictor: Predictor,
        score_thr: ScoreThr,
        ids: Optional[CocoIds] = None,
    ):
        self.path, self.score_thr = path, score_thr
        self.sample = sample.cpu()
        self.classes: tuple[str, ...] = tuple(predictor.meta['classes'])
        self.category_ids = find_category_ids(predictor) if ids is None else ids.categories
        self.image_id: Optional[int] = None if ids is None or path is None else ids.find_id(Path(path))
        self._predictor = predictor
        self._size, self._shape = frame.original_size, frame.pixels.shape  # the shape may be reduced
        self._frame = frame if path is None or frame.medium.is_video else None  # None: `draw` reads `path` again
        self.boxes: NDArray[Any] = np.zeros((0, 4), np.float32)
        self.scores: NDArray[Any] = np.zeros(0, np.float32)
        self.labels: NDArray[Any] = np.zeros(0, np.int64)
        self.masks: Optional[NDArray[Any]] = None
        self.label_map: Optional[NDArray[Any]] = None
        self.segment_map: Optional[NDArray[Any]] = None
        self.segments: list[dict[str, Any]] = []
        if 'pred_panoptic_seg' in self.sample:
            numbers_HW = self.sample.pred_panoptic_seg.sem_seg[0].numpy().astype(np.int64)
            self.label_map = numbers_HW % INSTANCE_OFFSET
            self.segment_map, self.segments = number_segments(numbers_HW, self.classes)
        elif 'pred_sem_seg' in self.sample:
            self.label_map = self.sample.pred_sem_seg.data[0].numpy().astype(np.int64)
        if 'pred_instances' in self.sample:
            objects = self.sample.pred_instances
            order = objects.scores.argsort(descending=True, stable=True)
            thresholds = objects.scores.new_tensor(list_thresholds(score_thr, self.classes))[objects.labels]
            objects = objects[order[(objects.scores >= thresholds)[order]]]
            self.scores = objects.scores.float().numpy()
            self.labels = objects.labels.numpy()
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

    def draw(self, score_thr: Optional[ScoreThr] = None) -> NDArray[Any]:
        """Return the picture with the prediction, (H, W, 3) uint8 RGB.

        Args:
            score_thr: lowest score of a drawn object. Default: `score_thr` of the prediction.

        Raises:
            OSError: if the file of the picture cannot be read any more.
        """
        frame = self._frame or make_frame(self._predictor.read_pixels(Path(str(self.path))), Path(str(self.path)))
        thresholds = self.score_thr if score_thr is None else score_thr
        return np.ascontiguousarray(self._predictor.draw(frame, self.sample, thresholds)[..., ::-1])

    def coco(self, image_id: Optional[int] = None) -> list[dict[str, Any]]:
        """Return the objects in COCO's format of results, with masks as RLE.

        Args:
            image_id: of the picture. Default: `image_id` of the prediction.

        Raises:
            ValueError: without an id.
        """
        from pycocotools import mask as coco_mask

        image_id = self.image_id if image_id is None else image_id
        if image_id is None:
            raise ValueError('coco takes an image_id, or predict(..., annotations=JSON) of a picture in the JSON')
        height, width = self._size
        scale = np.array([width, height] * 2) / np.tile(self._shape[1::-1], 2)
        boxes = self.boxes * scale
        results = []
        for index, (label, score) in enumerate(zip(self.labels, self.scores)):
            result: dict[str, Any] = dict(
                image_id=image_id, category_id=self.category_ids[int(label)], score=float(score)
            )
            if len(boxes):
                x1, y1, x2, y2 = map(float, boxes[index])
                result['bbox'] = [x1, y1, x2 - x1, y2 - y1]
            if self.masks is not None:
                mask_HW = enlarge(self.masks[index].astype(np.uint8), self._size)
                counts = coco_mask.encode(np.asfortranarray(mask_HW))['counts']
                result['segmentation'] = dict(size=list(self._size), counts=counts.decode('ascii'))
            results.append(result)
        return results

    def labels_png(self, first_label: int = 0) -> Optional[bytes]:
        """Return `label_map` as a PNG of the original picture's size, see `encode_labels`; None without one."""
        if self.label_map is None:
            return None
        labels_HW = enlarge(self.label_map.astype(np.uint16), self._size)
        return encode_labels(labels_HW, self._predictor.meta, first_label)

    def segments_png(self) -> Optional[tuple[bytes, list[dict[str, Any]]]]:
        """Return `segment_map` as a PNG of the original picture's size, and `segments`, in COCO's format; or None."""
        if self.segment_map is None:
            return None
        ids_HW = enlarge(self.segment_map.astype(np.uint16), self._size)
        areas = np.bincount(ids_HW.ravel())
        segments = [
            dict(id=segment['id'], category_id=self.category_ids[segment['label']], area=int(areas[segment['id']]))
            for segment in self.segments
        ]
        bgr_HW3 = np.stack([ids_HW * 0, ids_HW >> 8, ids_HW & 255], 2).astype(np.uint8)  # id = R + 256 G + 65536 B
        return cv2.imencode('.png', bgr_HW3)[1].tobytes(), segments

    def __repr__(self) -> str:
        height, width = self._size
        texts = [f'{self.path or "pixels"}', f'{width}x{height}']
        if 'pred_score' in self.sample:
            texts.append(f'{self.names[0]} {self.scores[0]:.2f}')
        elif 'pred_instances' in self.sample:
            counts = ', '.join(f'{count} {name}' for name, count in Counter(self.names).most_common())
            texts.append(f'{len(self.names)} objects' + (f': {counts}' if counts else ''))
        if self.label_map is not None:
            labels, counts_K = np.unique(self.label_map, return_counts=True)
            order = counts_K.argsort()[::-1][:5]
            names = (*self.classes, 'background')  # which a panoptic head numbers behind the classes
            shares = (f'{names[labels[index]]} {counts_K[index] / self.label_map.size:.0%}' for index in order)
            texts.append(', '.join(shares))
        return f'Prediction({"; ".join(texts)})'


COCO_GAPS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # unused ids from 1 to 90
COCO_STUFF = (92, 93, 95, 100, 107, 109, 112, 118, 119, 122, 125, 128, 130, 133, 138, 141, 144, 145, 147, 148, 149, 151,
              154, 155, 156, 159, 161, 166, 168, 171, 175, 176, 177, 178, 180, 181)  # fmt: skip


def find_category_ids(predictor: Predictor) -> Sequence[int]:
    """Return the id of each class of a detector: see `Prediction`."""
    if predictor.scope != 'mmdet':
        return []
    from mmdet.datasets import CocoDataset, CocoPanopticDataset

    ids: Sequence[int] = predictor.meta.get('category_ids', ())
    classes = tuple(predictor.meta['classes'])
    if len(ids) == len(classes):
        return ids
    things = [category_id for category_id in range(1, 91) if category_id not in COCO_GAPS]
    if classes == tuple(CocoDataset.METAINFO['classes']):
        return things
    if classes == tuple(CocoPanopticDataset.METAINFO['classes']):
        return [*things, *COCO_STUFF, *range(184, 201)]
    return list(range(1, len(classes) + 1))


def enlarge(values: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Return classes or a mask, (H, W) uint8 or uint16, resized to `size`."""
    return values if values.shape == size else cv2.resize(values, size[::-1], interpolation=cv2.INTER_NEAREST)


def number_segments(numbers_HW: NDArray[Any], classes: Sequence[str]) -> tuple[NDArray[Any], list[dict[str, Any]]]:
    """Return the ids of mmdet's segments at each pixel, from 1 and 0 for none as in COCO's PNGs, and a dict of each."""
    numbers_N, index_HW, areas_N = np.unique(numbers_HW, return_inverse=True, return_counts=True)
    labels_N = numbers_N % INSTANCE_OFFSET
    is_segment_N = labels_N < len(classes)
    ids_N = is_segment_N.cumsum() * is_segment_N
    segments = [
        dict(id=segment_id, label=label, name=classes[label], area=area)
        for segment_id, label, area in zip(ids_N.tolist(), labels_N.tolist(), areas_N.tolist())
        if segment_id
    ]
    return ids_N[index_HW.reshape(numbers_HW.shape)], segments
