"""What is drawn of a detector or segmentor: its input, its features, and the score of a box or a class."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional
from unittest import mock

import cv2
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray
from torch import Tensor

from ...pictures.attention import find_backbone
from ...pictures.cam import class_activation_map
from ..data.media import Frame
from .predict import Predictor


class Seen(NamedTuple):
    """An image as the model takes it."""

    inputs_BCHW: Tensor  # resized, normalised, padded
    picture_HW3: NDArray[Any]  # resized alone: uint8 RGB


class Explained(NamedTuple):
    """A class activation map."""

    map_HW: Tensor  # of the stage, from 0 to 1
    label: str  # the class
    score: float  # of the box; of a segmentor the share of pixels that have the class
    box: Optional[list[float]]  # (x1, y1, x2, y2) in the picture as the model takes it


def seen_by(predictor: Predictor, frame: Frame) -> Seen:
    """A frame as the predictor's model takes it."""
    with DefaultScope.overwrite_default_scope(predictor.scope):
        data = predictor.model.data_preprocessor(_batch(predictor, frame), False)
    height, width = data['data_samples'][0].img_shape[:2]
    pixels = cv2.resize(frame.pixels, (width, height), interpolation=cv2.INTER_AREA)
    return Seen(data['inputs'], cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))


@torch.no_grad()
def features_of(predictor: Predictor, seen: Seen) -> list[tuple[int, Tensor]]:
    """The number of each stage that the backbone emits, from 1, and its map (C, H, W)."""
    backbone = find_backbone(predictor.model)
    return [(index + 1, map_1CHW[0]) for index, map_1CHW in zip(backbone.out_indices, backbone(seen.inputs_BCHW))]


def explain(
    predictor: Predictor, frame: Frame, stage: int, method: str, label: Optional[str] = None, number: int = 1
) -> Explained:
    """A class activation map of what a detector finds, or of a class of a segmentor.

    Args:
        stage, method: see `class_activation_map`.
        label: the class. Default: of a detector any, of a segmentor the most frequent in the picture.
        number: which of a detector's boxes (of that class), from 1, the best first.

    Raises:
        ValueError: if the model finds no such box or does not know the class; or see `class_activation_map`.
    """
    classes = predictor.meta['classes']
    if label is not None and label not in classes:
        raise ValueError(f'the model knows no class {label!r}; it knows {", ".join(classes)}')
    index = None if label is None else classes.index(label)
    choose: Callable[..., Any] = _score_of_box if predictor.scope == 'mmdet' else _score_of_class
    chosen = []

    def score() -> Tensor:
        with DefaultScope.overwrite_default_scope(predictor.scope), _scores_keep_gradients():
            sample = predictor.model.test_step(_batch(predictor, frame))[0]
        value: Tensor
        value, *found = choose(sample, index, number)
        chosen.append(found)
        return value

    map_HW = class_activation_map(predictor.model, score, stage, method)[0]
    found, value, box = chosen[0]
    return Explained(map_HW, classes[found], value, box)


def _score_of_box(sample: BaseDataElement, label: Optional[int], number: int) -> tuple[Tensor, int, float, list[float]]:
    objects = sample.pred_instances
    if label is not None:
        objects = objects[objects.labels == label]
    if not 1 <= number <= len(objects):
        raise ValueError(f'the detector finds {len(objects)} such boxes, and there is no number {number} among them')
    one = objects[objects.scores.argsort(descending=True)[number - 1 : number]]
    scale = np.tile(sample.get('scale_factor', (1, 1)), 2)  # back to the picture that it takes
    box = one.bboxes[0].detach().cpu().numpy() * scale
    return one.scores[0], int(one.labels), one.scores.item(), box.tolist()


def _score_of_class(sample: BaseDataElement, label: Optional[int], _number: int) -> tuple[Tensor, int, float, None]:
    """The mean of a class's logits over the pixels that have it."""
    logits_KHW, labels_HW = sample.seg_logits.data, sample.pred_sem_seg.data[0]
    if label is None:
        label = int(labels_HW.flatten().bincount().argmax())
    there_HW = labels_HW == label
    if not there_HW.any():
        raise ValueError('no pixel of the picture is of that class')
    return logits_KHW[label][there_HW].mean(), label, float(there_HW.float().mean()), None


def _batch(predictor: Predictor, frame: Frame) -> dict[str, Any]:
    batch: dict[str, Any] = pseudo_collate([predictor.pipeline(dict(img=frame.pixels, img_id=0))])
    return batch


@contextmanager
def _scores_keep_gradients() -> Iterator[None]:
    """mmdet's one-stage heads detach their scores where they select those of an image; here they do not."""
    try:
        from mmdet.models.dense_heads import base_dense_head
    except ImportError:  # segmentors alone are installed
        yield
        return
    select = base_dense_head.select_single_mlvl
    with mock.patch.object(base_dense_head, 'select_single_mlvl', lambda maps, image, **_: select(maps, image, False)):
        yield
