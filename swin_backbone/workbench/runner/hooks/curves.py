"""curves.png beside the log of a training."""

import logging
from pathlib import Path
from typing import Any, Optional

from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ...pictures.curves import curves_figure, read_log
from ...pictures.save import save_figure


class CurvesHook(Hook):
    """Draw loss terms, learning rate and validation metrics at each validation and at the end of training.

    The picture is curves.png in the run's folder, beside the log. Runs in a working folder are drawn as a single
    resumed training. An error is a warning, and the training continues.
    """

    priority = 'LOWEST'  # after the hook that writes the scalars

    def after_val_epoch(self, runner: Runner, metrics: Optional[dict[str, Any]] = None) -> None:
        if runner._train_loop is not None and not isinstance(runner._train_loop, dict):
            self._draw(runner)

    def after_train(self, runner: Runner) -> None:
        self._draw(runner)

    @master_only
    def _draw(self, runner: Runner) -> None:
        try:
            save_figure(curves_figure([read_log(Path(runner.work_dir))]), Path(runner.log_dir, 'curves.png'))
        except Exception as error:  # no error here stops a training
            runner.logger.log(logging.WARNING, f'curves.png was not drawn: {error}')
