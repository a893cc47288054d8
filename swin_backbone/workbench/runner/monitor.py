"""Views of a training: curves.png beside the log, and mmengine's backends for TensorBoard and W&B."""

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional

from mmengine.config import Config
from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..pictures.curves import curves_figure, read_log
from ..pictures.save import save_figure

VIS_BACKENDS = {'tensorboard': 'TensorboardVisBackend', 'wandb': 'WandbVisBackend'}  # by the value of --vis


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


def enable_vis(cfg: Config, name: Optional[str]) -> None:
    """Let mmengine's visualizer write to TensorBoard or Weights & Biases too, in the run's folder.

    Args:
        name: 'tensorboard' or 'wandb'; None changes nothing.

    Raises:
        ValueError: if the package is not installed.
    """
    if name is None:
        return
    if find_spec(name) is None:
        raise ValueError(f'--vis {name} needs a package: make install EXTRAS={name}, or pip install {name}')
    visualizer = cfg.get('visualizer') or dict(type='Visualizer')
    backends = visualizer.get('vis_backends') or [dict(type='LocalVisBackend')]
    if VIS_BACKENDS[name] not in [entry['type'] for entry in backends]:
        cfg.visualizer = dict(visualizer, vis_backends=[*backends, dict(type=VIS_BACKENDS[name])])
