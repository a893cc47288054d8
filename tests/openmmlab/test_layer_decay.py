"""Layer-wise learning-rate decay: rate and decay of every parameter."""

import pytest
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import nn

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.models import SimMIMSwinBackbone, SimMIMSwinV2Backbone

LR, DECAY, RATE = 1e-4, 0.05, 0.9
DEPTHS = (2, 2, 6, 2)


class Detector(nn.Module):
    def __init__(self, kind=SwinBackbone, **backbone):
        super().__init__()
        self.backbone = kind(arch='tiny', embed_dims=24, use_abs_pos_embed=True, **backbone)
        self.head = nn.Sequential(nn.Conv2d(192, 8, 1), nn.BatchNorm2d(8))


def expected(kind):
    """Return the layer and decay of every parameter of Swin-T, V1 or V2, from the rule."""
    v2 = kind is SwinV2Backbone
    backbone = {'absolute_pos_embed': (0, 0.0)}
    for name in ('projection.weight', 'projection.bias', 'norm.weight', 'norm.bias'):
        backbone[f'patch_embed.{name}'] = (0, DECAY if name == 'projection.weight' else 0.0)
    layer = 0
    for stage, depth in enumerate(DEPTHS):
        for block in range(depth):
            layer += 1
            prefix = f'stages.{stage}.blocks.{block}.'
            tables = ['relative_position_bias_table']
            if v2:
                tables = ['logit_scale', 'cpb_mlp.0.weight', 'cpb_mlp.0.bias', 'cpb_mlp.2.weight', 'q_bias', 'v_bias']
            for table in tables:
                backbone[f'{prefix}attn.w_msa.{table}'] = (layer, 0.0)
            for linear in ('attn.w_msa.qkv', 'attn.w_msa.proj', 'ffn.layers.0.0', 'ffn.layers.1'):
                backbone[f'{prefix}{linear}.weight'] = (layer, DECAY)
                if not (v2 and linear == 'attn.w_msa.qkv'):
                    backbone[f'{prefix}{linear}.bias'] = (layer, 0.0)
            for norm in ('norm1', 'norm2'):
                backbone[f'{prefix}{norm}.weight'] = backbone[f'{prefix}{norm}.bias'] = (layer, 0.0)
        if stage < 3:
            merging = f'stages.{stage + v2}.downsample'  # in V2 the merging belongs to the following stage
            backbone[f'{merging}.reduction.weight'] = (layer, DECAY)
            for part in ('weight', 'bias'):
                backbone[f'{merging}.norm.{part}'] = (layer, 0.0)
        backbone[f'norm{stage}.weight'] = backbone[f'norm{stage}.bias'] = (layer, 0.0)
    heads = {'head.0.weight': DECAY, 'head.0.bias': 0.0, 'head.1.weight': 0.0, 'head.1.bias': 0.0}
    return {
        **{f'backbone.{name}': (LR * RATE ** (13 - layer), decay) for name, (layer, decay) in backbone.items()},
        **{name: (LR, decay) for name, decay in heads.items()},
    }


def build(model, paramwise=None, scope='mmengine'):
    cfg = dict(
        type='OptimWrapper',
        constructor='SwinLayerDecayOptimizerConstructor',
        optimizer=dict(type='AdamW', lr=LR, weight_decay=DECAY),
        paramwise_cfg=dict(decay_rate=RATE) if paramwise is None else paramwise,
    )
    with DefaultScope.overwrite_default_scope(scope):
        return build_optim_wrapper(model, cfg)


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_each_parameter_of_swin_t(scope, kind):
    pytest.importorskip(scope, reason=f'{scope} is not installed')
    model = Detector(kind)
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    actual = {
        name_of[id(parameter)]: (group['lr'], group['weight_decay'])
        for group in build(model, scope=scope).optimizer.param_groups
        for parameter in group['params']
    }
    truth = expected(kind)
    assert set(actual) == set(truth) == set(name_of.values())
    for name, (lr, decay) in truth.items():
        assert actual[name] == (pytest.approx(lr), decay), name


def test_frozen_parameters_are_in_no_group():
    model = Detector(frozen_stages=2)
    optimized = {id(p) for group in build(model).optimizer.param_groups for p in group['params']}
    assert optimized == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize('rate', [2, 1.01, 0, -0.5, float('nan')])
def test_a_rate_out_of_range(rate):
    with pytest.raises(ValueError, match=r'decay_rate takes a number above 0 and at most 1, got'):
        build(Detector(), dict(decay_rate=rate))


@pytest.mark.parametrize('kind', [SimMIMSwinBackbone, SimMIMSwinV2Backbone])
def test_a_mask_token_is_in_layer_0(kind):
    groups = build(kind(arch='nano')).optimizer.param_groups
    (rate,) = {group['lr'] for group in groups if 'mask_token' in group['param_names']}
    assert rate == min(group['lr'] for group in groups) < LR


class Adapted(SwinBackbone):
    """A user's subclass with a layer of its own."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.adapter = nn.Linear(4, 4)


def test_a_layer_of_a_subclass_learns_like_the_heads():
    groups = build(Adapted(arch='nano')).optimizer.param_groups
    (rate,) = {group['lr'] for group in groups if 'adapter.weight' in group['param_names']}
    assert rate == LR == max(group['lr'] for group in groups)


@pytest.mark.parametrize('paramwise', [{}, dict(decay_rate=0.9, lr_mult=2)])
def test_what_it_takes_is_said(paramwise):
    with pytest.raises((TypeError, ValueError), match='decay_rate'):
        build(Detector(), paramwise)


def test_a_model_without_swin_is_refused():
    with pytest.raises(ValueError, match='SwinBackbone'):
        build(nn.Linear(2, 2))
