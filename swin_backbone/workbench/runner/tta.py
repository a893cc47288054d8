"""Test-time augmentation of detectors with masks."""

from collections.abc import Sequence
from typing import Any

from mmcv.ops import batched_nms
from mmdet.models.test_time_augs import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor

FLIPPED_DIMS = dict(horizontal=(-1,), vertical=(-2,), diagonal=(-2, -1))


@MODELS.register_module()
class MaskTTAModel(DetTTAModel):
    """mmdet's DetTTAModel, also for masks: an object has the box and the mask of the view with the highest score."""

    def _merge_single_sample(self, data_samples: Sequence[DetDataSample]) -> DetDataSample:
        merged = InstanceData.cat([_turn_back(sample) for sample in data_samples])
        if len(merged):
            boxes, kept = batched_nms(merged.bboxes, merged.scores, merged.labels, self.tta_cfg.nms)
            merged = merged[kept]
            merged.bboxes, merged.scores = boxes[:, :-1], boxes[:, -1]  # soft NMS changes scores
            merged = merged[: self.tta_cfg.max_per_img]
        data_samples[0].pred_instances = merged
        return data_samples[0]


def _turn_back(sample: DetDataSample) -> InstanceData:
    """Return the objects of a view in the coordinates of the picture."""
    objects: Any = sample.pred_instances
    if sample.flip:
        objects.bboxes = bbox_flip(objects.bboxes, sample.ori_shape, sample.flip_direction)
        if 'masks' in objects:
            masks_NHW: Tensor = objects.masks
            objects.masks = masks_NHW.flip(FLIPPED_DIMS[sample.flip_direction])
    return objects
