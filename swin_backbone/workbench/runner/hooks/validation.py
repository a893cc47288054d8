"""Validation and test: predictions that depend neither on the batch nor on the process, and COCO's areas of masks."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Optional

from mmengine.dist import broadcast, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ....whole_files import write_whole
from ..predict_by_shape import predict_by_shape


class PredictByShapeHook(Hook):
    """Let a validation or a test call the model's step by shape: see `predict_by_shape`.

    The step is replaced on the model of the runner, for the time of the loop: any loop of a config calls it there.
    """

    restore: Optional[Callable[[], None]] = None  # the model's own step, during a loop

    def _before_epoch(self, runner: Runner, mode: str = 'train') -> None:
        """Replace the step. mmengine calls this method before each epoch of a training, validation or test."""
        if mode == 'train':
            return
        model = runner.model
        name = f'{mode}_step'
        own_step = vars(model).get(name)  # a method that a user has set on the instance

        def restore() -> None:
            vars(model).pop(name, None)
            if own_step is not None:
                setattr(model, name, own_step)

        self.restore = restore
        setattr(model, name, partial(predict_by_shape, getattr(model, name)))

    def _after_epoch(self, runner: Runner, mode: str = 'train') -> None:
        self.close()

    def close(self) -> None:
        """Give the model its own step back, also after an error in the loop."""
        if self.restore is not None:
            self.restore()
            self.restore = None


class BroadcastBuffersHook(Hook):
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

    def _after_epoch(self, runner: Runner, mode: str = 'train') -> None:
        loop = getattr(runner, f'{mode}_loop')
        for metric in getattr(getattr(loop, 'evaluator', None), 'metrics', ()):  # not in every foreign loop
            prefix = getattr(metric, 'outfile_prefix', None)
            path = Path(f'{prefix}.segm.json')
            if prefix is not None and is_main_process() and path.is_file():
                objects = json.loads(path.read_bytes())
                for item in objects:
                    item.pop('bbox', None)
                write_whole(path, json.dumps(objects).encode())
