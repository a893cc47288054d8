"""The backbones in mmengine: registries, initializers, the log, and what mmengine and mmcv do to a model."""

import copy
from importlib import import_module

import numpy as np
import pytest
import torch
from mmcv.cnn.utils import fuse_conv_bn
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.model import (
    BaseModule,
    ConstantInit,
    ExponentialMovingAverage,
    MMDistributedDataParallel,
    initialize,
    revert_sync_batchnorm,
)
from mmengine.registry import MODELS
from torch import nn

from swin_backbone import SwinBackbone, load_checkpoint, models
from swin_backbone.models.layers import SwinBlock

SMALL = dict(embed_dims=16, depths=(1, 2), num_heads=(1, 2), out_indices=(0, 1), window_size=4)


class Detector(BaseModule):
    def __init__(self, **backbone):
        super().__init__()
        self.backbone = MODELS.build(dict(type='SwinBackbone', **SMALL, **backbone))
        self.head = nn.Conv2d(32, 4, 1)

    def forward(self, x):
        return self.head(self.backbone(x)[-1])


@pytest.mark.parametrize('registry', ['mmengine.registry', 'mmdet.registry', 'mmseg.registry'])
@pytest.mark.parametrize('name', models.__all__)
def test_is_built_by_every_toolbox(registry, name):
    if registry != 'mmengine.registry':
        pytest.importorskip(registry)
    cfg = dict(type=name, **(dict(embed_dims=32, num_heads=2) if name == 'GlobalAttention' else dict(arch='nano')))
    assert type(import_module(registry).MODELS.build(cfg)) is getattr(models, name)


def test_what_a_config_file_holds_is_taken():
    cfg = Config(dict(type='SwinBackbone', **{**SMALL, 'depths': [1, 2], 'norm_cfg': dict(type='LN', eps=1e-6)}))
    cfg.init_cfg = [dict(type='TruncNormal', layer='Linear', std=0.1)]
    backbone = MODELS.build({**cfg, 'num_heads': tuple(np.array([1, 2])), 'mlp_ratio': np.float32(2)})
    assert backbone.norm1.eps == 1e-6
    backbone.init_weights()
    assert 0.05 < backbone.stages[0].blocks[0].attn.w_msa.qkv.weight.std() < 0.2


LAYERS = ['Linear', 'Conv2d']
INITIALIZERS = [
    *(dict(type=name, layer=LAYERS) for name in ('Xavier', 'Normal', 'TruncNormal', 'Uniform', 'Kaiming')),
    dict(type='Caffe2Xavier', layer='Linear'),
    dict(type='Constant', layer='LayerNorm', val=0.5, bias=0.1),
    dict(type=ConstantInit, layer='LayerNorm', val=0.5),
    dict(type='Constant', layer='Linear', val=0.1, override=dict(type='Constant', name='patch_embed', val=0.2)),
    [dict(type='Constant', layer='LayerNorm', val=0.5), dict(type='Normal', layer='Linear', std=0.3)],
]


@pytest.mark.parametrize('init_cfg', INITIALIZERS, ids=str)
def test_every_initializer_writes_over_the_papers_weights(init_cfg):
    backbone, expected = (SwinBackbone(**SMALL, init_cfg=cfg) for cfg in (init_cfg, None))
    expected.load_state_dict(backbone.state_dict())
    torch.manual_seed(1)
    backbone.init_weights()
    torch.manual_seed(1)
    expected.init_weights()
    plain = copy.deepcopy(expected.state_dict())
    initialize(expected, copy.deepcopy(init_cfg))
    assert all(map(torch.equal, backbone.state_dict().values(), expected.state_dict().values()))
    assert not all(map(torch.equal, backbone.state_dict().values(), plain.values()))


@pytest.mark.parametrize('init_cfg', [None, dict(type='Xavier', layer='Linear')])
def test_a_detector_initialises_and_logs_each_parameter_once(tmp_path, init_cfg):
    MMLogger.get_instance(tmp_path.name, log_file=str(tmp_path / 'log'))
    model = Detector(init_cfg=init_cfg)
    calls, init_weights = [], model.backbone.init_weights
    model.backbone.init_weights = lambda: calls.append(1) or init_weights()
    model.init_weights()
    assert len(calls) == 1
    lines = (tmp_path / 'log').read_text()
    for name, _ in model.named_parameters():
        assert f'\n{name} - torch.Size' in lines
    assert ('XavierInit: gain=1' in lines) == bool(init_cfg)
    assert ('by user-defined `init_weights` in SwinBackbone' in lines) != bool(init_cfg)
    assert not [one for one in model.modules() if hasattr(one, '_params_init_info')]


def test_a_backbone_that_is_initialised_stays():
    model = Detector()
    model.backbone.init_weights()
    before = copy.deepcopy(model.backbone.state_dict())
    model.init_weights()
    assert all(torch.equal(value, before[key]) for key, value in model.backbone.state_dict().items())


def test_lines_reach_the_log_of_a_training(tmp_path, capsys):
    MMLogger.get_instance(tmp_path.name, log_file=str(tmp_path / 'log'))
    torch.save(SwinBackbone(arch='nano').state_dict(), tmp_path / 'weights.pth')
    load_checkpoint(SwinBackbone(arch='nano'), tmp_path / 'weights.pth')
    lines = (tmp_path / 'log').read_text().splitlines()
    assert len([line for line in lines if 'INFO - Loaded' in line]) == 1
    assert capsys.readouterr().out.count('Loaded') == 1  # and no line of a further handler


def test_each_block_has_with_cp():
    """mmsegmentation's test of its Swin reads the attribute."""
    model = SwinBackbone(**SMALL, with_cp=True)
    blocks = [module for module in model.modules() if isinstance(module, SwinBlock)]
    assert [block.with_cp for block in blocks] == [True] * 3
    blocks[1].with_cp = False
    assert model.with_cp
    model.with_cp = False
    assert [block.with_cp for block in blocks] == [False] * 3


@pytest.mark.parametrize(
    'change',
    [
        nn.SyncBatchNorm.convert_sync_batchnorm,
        revert_sync_batchnorm,
        fuse_conv_bn,
        ExponentialMovingAverage,
        copy.deepcopy,
        MMDistributedDataParallel,
    ],
    ids=lambda change: getattr(change, '__name__', str(change)),
)
def test_what_mmengine_does_to_a_model_keeps_its_outputs(one_process, change):
    model, x = Detector().eval(), torch.randn(2, 3, 40, 36)
    with torch.no_grad():
        expected = model(x)
        changed = change(copy.deepcopy(model)).eval()
        torch.testing.assert_close(changed(x), expected, rtol=1e-5, atol=1e-6)


def test_types_of_mmcvs_registry():
    backbone = SwinBackbone(**SMALL, act_cfg=dict(type='HSwish'), norm_cfg=dict(type='LN', requires_grad=False))
    assert type(backbone.stages[0].blocks[0].ffn.layers[0][1]) is MODELS.get('HSwish')
    assert not any(parameter.requires_grad for name, parameter in backbone.named_parameters() if 'norm' in name)
    backbone(torch.rand(1, 3, 32, 32))[0].sum().backward()
