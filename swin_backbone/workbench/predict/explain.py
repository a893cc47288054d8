"""Class activation maps of a detector or segmentor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional
from unittest import mock

import cv2
import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray
from torch import Tensor

from ..data.media import Frame, convert_to_bgr
from ..pictures.cam import class_activation_map
from .predictor import Predictor


class Explanation(NamedTuple):
    """A class activation map.

    Args:
        map_HW: values from 0 to 1, in the size of the stage's map.
        class_name: name of the class.
        score: score of the box; for a segmentor the share of pixels with the class.
        box: (x1, y1, x2, y2) in pixels of the model's input; None for a segmentor.
    """

    map_HW: Tensor
    class_name: str
    score: float
    box: Optional[list[float]]


def resize_picture(frame: Frame, model_input: dict[str, Any]) -> NDArray[Any]:
    """Return the pixels of a frame in the size of the model's input without padding, (H, W, 3) uint8 RGB."""
    height, width = model_input['data_samples'].img_shape[:2]
    pixels = cv2.resize(convert_to_bgr(frame.pixels), (width, height), interpolation=cv2.INTER_AREA)
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


def explain(
    predictor: Predictor,
    model_input: dict[str, Any],
    stage: int,
    method: str,
    class_name: Optional[str] = None,
    number: int = 1,
) -> Explanation:
    """Return a class activation map of a box of a detector, or of a class of a segmentor.

    Args:
        model_input: result of `Predictor.preprocess`.
        stage, method: see `class_activation_map`.
        class_name: Default: any class of a detector, the most frequent class of a segmentor's picture.
        number: number of the box among the boxes of the class, from 1 for the highest score.

    Raises:
        ValueError: if there is no such class or box; or see `class_activation_map`.
    """
    classes = predictor.meta['classes']
    if class_name is not None and class_name not in classes:
        raise ValueError(f'the class must be one of {", ".join(classes)}, got {class_name!r}')
    label = None if class_name is None else classes.index(class_name)
    find: Callable[..., Any] = _find_box if predictor.scope == 'mmdet' else _find_pixels
    found: list[Any] = []

    def score() -> Tensor:
        with predictor.in_scope(), _scores_keep_gradients():
            (sample,) = predictor.model.test_step(pseudo_collate([model_input]))
        found[:] = find(sample, label, number)
        tensor: Tensor = found[0]
        return tensor

    map_HW = class_activation_map(predictor.model, score, stage, method)[0]
    _, found_label, value, box = found
    return Explanation(map_HW, classes[found_label], value, box)


def _find_box(sample: BaseDataElement, label: Optional[int], number: int) -> tuple[Tensor, int, float, list[float]]:
    """Return score, label, score as a number, and box of an object."""
    objects = sample.pred_instances
    if label is not None:
        objects = objects[objects.labels == label]
    if not 1 <= number <= len(objects):
        raise ValueError(f'the number of the box must be from 1 to {len(objects)}, got {number}')
    best = objects[objects.scores.argsort(descending=True)[number - 1 : number]]
    scale = np.tile(sample.get('scale_factor', (1, 1)), 2)  # from the frame to the input
    box = best.bboxes[0].detach().cpu().numpy() * scale
    return best.scores[0], int(best.labels), best.scores.item(), box.tolist()


def _find_pixels(sample: BaseDataElement, label: Optional[int], number: int) -> tuple[Tensor, int, float, None]:
    """Return the mean of a class's logits over its pixels, label, share of pixels, and None for the box."""
    if number != 1:
        raise ValueError(f'the number is of a box, and a segmentor has none; got {number}')
    logits_KHW = sample.seg_logits.data
    labels_HW = sample.pred_sem_seg.data[0]
    if len(logits_KHW) == 1:  # the probability of the second class
        logits_KHW = torch.cat([1 - logits_KHW, logits_KHW])
    if label is None:
        label = int(labels_HW.flatten().bincount().argmax())
    has_class_HW = labels_HW == label
    if not has_class_HW.any():
        raise ValueError('no pixel of the picture has this class')
    return logits_KHW[label][has_class_HW].mean(), label, float(has_class_HW.float().mean()), None


@contextmanager
def _scores_keep_gradients() -> Iterator[None]:
    """Keep the gradients of scores, which mmdet's one-stage heads detach."""
    try:
        from mmdet.models.dense_heads import base_dense_head
    except ImportError:  # only mmseg is installed
        yield
        return
    select = base_dense_head.select_single_mlvl
    with mock.patch.object(base_dense_head, 'select_single_mlvl', lambda maps, image, **_: select(maps, image, False)):
        yield
