"""Checkpoints of random models."""

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from .. import ROOT

DETECTION = ROOT / 'configs' / 'demo' / 'mask-rcnn_swin-nano_fpn_shapes.py'
SEGMENTATION = ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py'


def save_random_model(config, folder, change=lambda model: model.init_weights()):
    """Save the model of a config or its path with random weights, and the classes as a JSON config has them.

    Args:
        change: changes the weights of the model in place.

    Returns:
        The path of the checkpoint, FOLDER/NAME.pth.
    """
    cfg = config if isinstance(config, Config) else Config.fromfile(config)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        change(model)
    metainfo = dict(cfg.train_dataloader.dataset.get('metainfo', {}))
    if 'palette' in metainfo:
        metainfo['palette'] = [list(colour) for colour in metainfo['palette']]
    path = folder / f'{cfg.filename.rpartition("/")[2].removesuffix(".py")}.pth'
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=metainfo)), path)
    return path
