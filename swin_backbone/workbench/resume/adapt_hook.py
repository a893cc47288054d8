"""Fit the checkpoint of a Runner to its model, and restore the state of a training."""

from collections.abc import Sequence
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import BaseLoop, Runner

from ..weights.completeness import ALLOW_MISSING, adapt_checkpoint, as_mapping, compare_class_names, read_dataset_meta
from .exact_resume import START_ANEW_HINT, require_training_state, restore_training_state


class AdaptCheckpointHook(Hook):
    """Adapt a checkpoint of any origin to the model, before the Runner loads or resumes the checkpoint.

    The hook comes before EMAHook, which copies the weights.
    """

    priority = 'VERY_HIGH'

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        name = runner.resumed_from or runner._load_from or runner.work_dir
        if runner._resume:
            require_training_state(checkpoint, name)
        warning = compare_class_names(read_dataset_meta(checkpoint).get('classes') or (), _find_classes(runner), name)
        if warning and not runner._resume:  # `restore_training_state` warns of it too
            runner.logger.warning(warning)
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        strict = runner._resume or runner.settings.needs_all_weights
        hint = START_ANEW_HINT if runner._resume else ALLOW_MISSING
        weights = adapt_checkpoint(model, checkpoint, name, strict, hint)
        if weights is not None:
            checkpoint['state_dict'] = weights
        if runner._resume:
            restore_training_state(runner, checkpoint, name)


def _find_classes(runner: Runner) -> Sequence[str]:
    """Return the classes of the data of a runner's loop; () without names."""
    loops = [loop for loop in (runner._train_loop, runner._val_loop, runner._test_loop) if isinstance(loop, BaseLoop)]
    dataset = getattr(loops[0].dataloader, 'dataset', None) if loops else None
    return as_mapping(getattr(dataset, 'metainfo', None)).get('classes') or ()
