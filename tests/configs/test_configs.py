"""The configs build; neck, heads, weights and metafiles fit the backbone."""

from collections import Counter

import pytest
from helpers import ROOT
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.registry import init_default_scope
from mmengine.utils import is_installed

from swin_backbone.workbench.cost import flops

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


METADATA = {
    model['Name']: model['Metadata']
    for path in load(ROOT / 'model-index.yml')['Import']
    for model in load(ROOT / path)['Models']
}
KINDS = {
    '_lora_': 'LoraSwinBackbone',
    'simmim_swin-': 'SimMIMSwinBackbone',
    'simmim_swinv2': 'SimMIMSwinV2Backbone',
    'swinv2': 'SwinV2Backbone',
    'swin-mlp': 'SwinMLPBackbone',
}


@pytest.mark.parametrize('name', PATHS)
def test_every_config_builds_its_model_whose_parts_fit(name):
    if '_lora_' in name:
        pytest.importorskip('peft', reason='peft is not installed: make test ENV=peers')
    cfg = Config.fromfile(PATHS[name])
    if name in METADATA:
        data, swin = METADATA[name], cfg.model.backbone.type.removesuffix('Backbone')
        assert data['Architecture'][0] == f'{swin}-{cfg.model.backbone.arch[0].upper()}'
        assert data.get('Epochs', cfg.get('max_epochs')) == cfg.get('max_epochs')
        assert data.get('Iterations', cfg.train_cfg.get('max_iters')) == cfg.train_cfg.get('max_iters')
    if not is_installed(cfg.default_scope):
        pytest.skip(f'{cfg.default_scope} is not installed')
    assert not any(str(base).startswith(('mmdet::', 'mmseg::')) for base in cfg.get('_base_', []))
    init_default_scope(cfg.default_scope)
    backbone = flops.build(cfg.model, cfg.default_scope).backbone  # no memory: the largest have 300 M parameters
    truth = next((kind for part, kind in KINDS.items() if part in name), 'SwinBackbone')
    assert type(backbone).__name__ == truth
    if name not in READ_MAPS:
        return
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
