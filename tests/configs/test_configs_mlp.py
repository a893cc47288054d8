"""The Swin-MLP configs: neck, heads and weights fit the backbone."""

import glob
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS

from swin_backbone import SwinMLPBackbone

ROOT = ROOT / 'configs'
CONFIGS = sorted(glob.glob('**/*swin-mlp*.py', root_dir=ROOT, recursive=True))


def test_there_is_one_for_a_detector_and_one_for_a_segmentor():
    assert {Path(path).parent.name for path in CONFIGS} == {'mask_rcnn', 'upernet'}


@pytest.mark.parametrize('path', CONFIGS)
def test_neck_heads_and_weights_are_those_of_the_backbone(path):
    cfg = Config.fromfile(ROOT / path)
    with torch.device('meta'):
        backbone = MODELS.build({**cfg.model.backbone, 'init_cfg': None})
    assert isinstance(backbone, SwinMLPBackbone)
    reader = cfg.model.get('neck') or cfg.model.decode_head
    assert list(reader.in_channels) == backbone.out_channels
    arch, channels, _, window = cfg.pretrained.rpartition('swin_mlp_')[2].split('_')[:4]
    assert cfg.model.backbone.arch == arch
    mixing = backbone.stages[0].blocks[0].spatial_mlp
    assert f'c{backbone.num_features[0] // mixing.groups}' == channels
    assert {f'window{side}' for size in backbone.window_size for side in size} == {window}
