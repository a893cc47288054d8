"""Validation and test: predictions that depend neither on the batch nor on the process, and COCO's areas of masks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import broadcast, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import MODELS
from mmengine.runner import Runner

from ...whole_files import write_whole
from ..data.annotations import class_of


def predict_by_shape(step: Callable[[Any], Any], data: Any) -> Any:
    """Call a model's `test_step` for the pictures of each shape in turn. Samples have the order of the batch.

    Toolboxes pad the pictures of a batch to one shape. A model sees the padding, so predictions would depend on the
    other pictures of the batch.
    """
    inputs = data.get('inputs') if isinstance(data, dict) else None
    groups: dict[torch.Size, list[int]] = {}
    if isinstance(inputs, (list, tuple)) and all(isinstance(picture, torch.Tensor) for picture in inputs):
        for index, picture in enumerate(inputs):
            groups.setdefault(picture.shape, []).append(index)
    if len(groups) < 2:
        return step(data)
    samples: dict[int, Any] = {}
    for indices in groups.values():
        part = {name: [values[index] for index in indices] for name, values in data.items()}
        samples.update(zip(indices, step(part)))
    return [samples[index] for index in range(len(samples))]


class ByShape:
    """`val_step` and `test_step` of a model by shape: see `predict_by_shape`."""

    def val_step(self, data: Any) -> Any:
        return predict_by_shape(super().val_step, data)  # type: ignore[misc]  # of the model beside

    def test_step(self, data: Any) -> Any:
        return predict_by_shape(super().test_step, data)  # type: ignore[misc]


def with_steps_by_shape(model: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a model whose class is a subclass with the steps of `ByShape`."""
    if isinstance(model.get('module'), dict):  # in a model for test-time augmentation
        return dict(model, module=with_steps_by_shape(model['module']))
    cls = class_of(model, MODELS)
    return dict(model, type=type(cls.__name__, (ByShape, cls), {'__module__': cls.__module__})) if cls else model


class SameBuffersHook(Hook):
    """Before a validation, give all processes the buffers of the first process, which are in its checkpoints.

    Running statistics of batch norm differ between processes: `DistributedDataParallel` of mmengine's runner has
    broadcast_buffers=False. Each process validates a part of the pictures.
    """

    priority = 'VERY_LOW'  # after EMAHook, which puts the averages into the model

    def before_val_epoch(self, runner: Runner) -> None:
        if runner.distributed:
            saved = runner.model.state_dict()
            for name, buffer in runner.model.named_buffers():
                if name in saved and buffer.is_floating_point():
                    broadcast(buffer)


class MaskAreasHook(Hook):
    """Remove the boxes from `PREFIX.segm.json`, which mmdet's CocoMetric writes with outfile_prefix=PREFIX.

    mmdet evaluates masks without boxes. With boxes in the file, pycocotools takes their areas as those of the masks,
    and AP by size differs from the printed AP.
    """

    def after_val_epoch(self, runner: Runner, metrics: Any = None) -> None:
        self._remove_boxes(runner.val_loop)

    def after_test_epoch(self, runner: Runner, metrics: Any = None) -> None:
        self._remove_boxes(runner.test_loop)

    def _remove_boxes(self, loop: Any) -> None:
        for metric in getattr(getattr(loop, 'evaluator', None), 'metrics', ()):  # not in every foreign loop
            path = Path(f'{getattr(metric, "outfile_prefix", None)}.segm.json')
            if is_main_process() and path.is_file():
                objects = json.loads(path.read_bytes())
                for item in objects:
                    item.pop('bbox', None)
                write_whole(path, json.dumps(objects).encode())
