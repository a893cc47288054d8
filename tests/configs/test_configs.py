"""Neck, heads and weights of the configs fit the backbone."""

from collections import Counter

import pytest
import torch
from helpers import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS

PATHS = {path.stem: path for path in sorted((ROOT / 'configs').glob('[!_]*/*.py'))}
# Classifiers read a vector, SimMIM's backbone emits one map, and LoRA needs peft.
READ_MAPS = [
    name for name, path in PATHS.items()
    if path.parent.name != 'swin_transformer' and not any(word in name for word in ('simmim', 'crops', 'lora'))
]  # fmt: skip


def test_each_promised_config_exists():
    for kind, folders in {
        'swinv2': dict(mask_rcnn=3, cascade_rcnn=3, retinanet=1, upernet=4, demo=1),
        'swin-mlp': dict(mask_rcnn=1, upernet=1),
    }.items():
        assert Counter(PATHS[name].parent.name for name in READ_MAPS if kind in name) == folders


@pytest.mark.parametrize('name', READ_MAPS)
def test_neck_and_heads_fit_the_backbone(name):
    cfg = Config.fromfile(PATHS[name])
    with torch.device('meta'):
        backbone = MODELS.build({**cfg.model.backbone, 'init_cfg': None})
    reader = next(cfg.model[part] for part in ('neck', 'panoptic_head', 'decode_head') if cfg.model.get(part))
    reader = reader[-1] if isinstance(reader, list) else reader  # the FPN behind HTC's global attention
    assert list(reader.in_channels) == backbone.out_channels
    if 'auxiliary_head' in cfg.model:
        assert cfg.model.auxiliary_head.in_channels == backbone.out_channels[cfg.model.auxiliary_head.in_index]
    if 'swinv2' in name:
        decay = cfg.optim_wrapper.paramwise_cfg.custom_keys
        assert decay.cpb_mlp.decay_mult == decay.logit_scale.decay_mult == decay.norm.decay_mult == 0
    if 'swin-mlp' in name:
        arch, channels, _, window = cfg.pretrained.rpartition('swin_mlp_')[2].split('_')[:4]
        assert cfg.model.backbone.arch == arch
        assert f'c{backbone.num_features[0] // backbone.stages[0].blocks[0].spatial_mlp.groups}' == channels
        assert {f'window{side}' for size in backbone.window_size for side in size} == {window}


@pytest.mark.parametrize('name', [name for name in READ_MAPS if 'swinv2' in name and 'nano' not in name])
def test_weights_of_v2_fit_size_and_window(name):
    cfg = Config.fromfile(PATHS[name])
    backbone = cfg.model.backbone
    size, _, window, *_ = cfg.pretrained.rpartition('swinv2_')[2].split('_')
    assert size == backbone.arch
    if 'to' in window:  # fine-tuned, as window12to16
        before, after = map(int, window.removeprefix('window').split('to'))
        assert backbone.pretrained_window_sizes == (before, before, before, before // 2)
        assert backbone.window_size == (after, after, after, after // 2)
    else:
        assert backbone.window_size == int(window.removeprefix('window'))
