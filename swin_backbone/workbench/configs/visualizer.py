"""mmengine's backends of a log for TensorBoard and Weights & Biases."""

from importlib.util import find_spec

from mmengine.config import Config

from ...openmmlab.config_parts import type_name

VIS_BACKENDS = {'tensorboard': 'TensorboardVisBackend', 'wandb': 'WandbVisBackend'}  # by the value of --vis


def enable_vis(cfg: Config, name: str) -> None:
    """Let mmengine's visualizer write to TensorBoard or Weights & Biases too, in the run's folder.

    Args:
        name: 'tensorboard' or 'wandb'.

    Raises:
        ValueError: if the package is not installed.
    """
    if find_spec(name) is None:
        raise ValueError(f'--vis {name} needs a package: make install EXTRAS={name}, or pip install {name}')
    visualizer = cfg.get('visualizer') or dict(type='Visualizer')
    backends = visualizer.get('vis_backends') or [dict(type='LocalVisBackend')]
    if VIS_BACKENDS[name] not in map(type_name, backends):
        cfg.visualizer = dict(visualizer, vis_backends=[*backends, dict(type=VIS_BACKENDS[name])])
