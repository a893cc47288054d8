"""`--vis`: a backend of mmengine's visualizer."""

import pytest
from mmengine.config import Config
from mmengine.visualization import TensorboardVisBackend

from swin_backbone.workbench.configs import visualizer


@pytest.mark.parametrize(
    'kind', ['TensorboardVisBackend', 'mmengine.TensorboardVisBackend', TensorboardVisBackend], ids=str
)
def test_a_backend_of_the_config_is_not_added_again(monkeypatch, kind):
    monkeypatch.setattr(visualizer, 'find_spec', lambda name: name)
    cfg = Config(dict(visualizer=dict(type='Visualizer', vis_backends=[dict(type=kind, save_dir='runs')])))
    visualizer.enable_vis(cfg, 'tensorboard')
    assert len(cfg.visualizer.vis_backends) == 1
    visualizer.enable_vis(cfg, 'wandb')
    assert cfg.visualizer.vis_backends[1:] == [dict(type='WandbVisBackend')]
