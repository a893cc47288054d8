"""The configs of Swin V2 and Swin-MLP: neck, heads and weights fit the backbone."""

from collections import Counter

import pytest
import torch
from helpers import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS

from swin_backbone import SwinMLPBackbone, SwinV2Backbone

KINDS = {'swinv2': SwinV2Backbone, 'swin-mlp': SwinMLPBackbone}
# SimMIM's backbone emits one map
PATHS = [path for path in sorted((ROOT / 'configs').glob('*/*.py')) if 'simmim' not in path.name]
CONFIGS = {path.stem: (path, kind) for kind in KINDS for path in PATHS if kind in path.name}


def test_each_promised_config_exists():
    folders = Counter((kind, path.parent.name) for path, kind in CONFIGS.values())
    v2 = dict(mask_rcnn=3, cascade_rcnn=3, retinanet=1, upernet=4, demo=1)
    expected = {('swinv2', folder): count for folder, count in v2.items()}
    assert folders == {**expected, ('swin-mlp', 'mask_rcnn'): 1, ('swin-mlp', 'upernet'): 1}


@pytest.mark.parametrize('name', CONFIGS)
def test_neck_and_heads_fit_the_backbone(name):
    path, kind = CONFIGS[name]
    cfg = Config.fromfile(path)
    with torch.device('meta'):
        backbone = MODELS.build({**cfg.model.backbone, 'init_cfg': None})
    assert isinstance(backbone, KINDS[kind])
    reader = cfg.model.get('neck') or cfg.model.decode_head
    assert list(reader.in_channels) == backbone.out_channels
    if 'auxiliary_head' in cfg.model:
        assert cfg.model.auxiliary_head.in_channels == backbone.out_channels[cfg.model.auxiliary_head.in_index]
    if kind == 'swinv2':
        decay = cfg.optim_wrapper.paramwise_cfg.custom_keys
        assert decay.cpb_mlp.decay_mult == decay.logit_scale.decay_mult == decay.norm.decay_mult == 0
    else:
        arch, channels, _, window = cfg.pretrained.rpartition('swin_mlp_')[2].split('_')[:4]
        assert cfg.model.backbone.arch == arch
        assert f'c{backbone.num_features[0] // backbone.stages[0].blocks[0].spatial_mlp.groups}' == channels
        assert {f'window{side}' for size in backbone.window_size for side in size} == {window}


@pytest.mark.parametrize('name', [name for name, (_, kind) in CONFIGS.items() if kind == 'swinv2' and 'nano' not in name])
def test_weights_of_v2_fit_size_and_window(name):
    cfg = Config.fromfile(CONFIGS[name][0])
    backbone = cfg.model.backbone
    size, _, window, *_ = cfg.pretrained.rpartition('swinv2_')[2].split('_')
    assert size == backbone.arch
    if 'to' in window:  # fine-tuned, as window12to16
        before, after = map(int, window.removeprefix('window').split('to'))
        assert backbone.pretrained_window_sizes == (before, before, before, before // 2)
        assert backbone.window_size == (after, after, after, after // 2)
    else:
        assert backbone.window_size == int(window.removeprefix('window'))
