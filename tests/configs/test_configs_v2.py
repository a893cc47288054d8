"""The configs of Swin V2: all names exist, and neck and heads fit the backbone."""

import glob

import pytest
import torch
from helpers import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS

from swin_backbone import SwinV2Backbone

ROOT = ROOT / 'configs'
PATHS = sorted(glob.glob('**/*swinv2*.py', root_dir=ROOT, recursive=True))
CONFIGS = [path for path in PATHS if 'simmim' not in path]  # SimMIM's backbone emits one map


def test_there_is_one_for_each_that_is_promised():
    assert len(CONFIGS) == 3 + 3 + 1 + 4 + 1  # Mask R-CNN, Cascade, RetinaNet, UPerNet, demo


@pytest.mark.parametrize('path', CONFIGS)
def test_neck_and_heads_take_what_the_backbone_gives(path):
    cfg = Config.fromfile(ROOT / path)
    with torch.device('meta'):
        backbone = MODELS.build({**cfg.model.backbone, 'init_cfg': None})
    assert isinstance(backbone, SwinV2Backbone)
    reader = cfg.model.get('neck') or cfg.model.decode_head
    assert list(reader.in_channels) == backbone.out_channels
    if 'auxiliary_head' in cfg.model:
        assert cfg.model.auxiliary_head.in_channels == backbone.out_channels[cfg.model.auxiliary_head.in_index]
    decay = cfg.optim_wrapper.paramwise_cfg.custom_keys
    assert decay.cpb_mlp.decay_mult == decay.logit_scale.decay_mult == decay.norm.decay_mult == 0


@pytest.mark.parametrize('path', [path for path in CONFIGS if 'nano' not in path])
def test_weights_are_those_of_its_size_and_window(path):
    cfg = Config.fromfile(ROOT / path)
    backbone = cfg.model.backbone
    size, _, window, *_ = cfg.pretrained.rpartition('swinv2_')[2].split('_')
    assert size == backbone.arch
    fine_tuned = 'to' in window  # window12to16
    if fine_tuned:
        before, after = (int(number) for number in window.removeprefix('window').split('to'))
        assert backbone.pretrained_window_sizes == (before, before, before, before // 2)
        assert backbone.window_size == (after, after, after, after // 2)
    else:
        assert backbone.window_size == int(window.removeprefix('window'))
