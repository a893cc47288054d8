"""In every framework: one or four channels, images of a pixel, bfloat16, threads, some stages, frozen ones."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.adapters.detectron2_interface import recorded
from helpers.adapters.frameworks import assert_equal_maps, require

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone

pytestmark = pytest.mark.peer
FAMILIES = {'v1': SwinBackbone, 'v2': SwinV2Backbone, 'mlp': SwinMLPBackbone}


def by_timm(family, out_indices=(0, 1, 2, 3), in_channels=3, **arguments):
    timm = require('timm')
    import swin_backbone.adapters.timm  # noqa: F401

    name = {'v1': 'swin_backbone_nano', 'v2': 'swinv2_backbone_nano', 'mlp': 'swin_mlp_backbone_nano'}[family]
    return timm.create_model(name, features_only=True, out_indices=out_indices, in_chans=in_channels, **arguments)


def by_transformers(family, out_indices=(0, 1, 2, 3), **arguments):
    require('transformers')
    from swin_backbone.adapters.transformers import SwinBackboneConfig, SwinBackboneModel

    names = [f'stage{index + 1}' for index in out_indices]
    return SwinBackboneModel(
        SwinBackboneConfig(family=family, arch='nano', out_features=names, arguments=dict(arguments))
    )


def by_torchvision(family, **arguments):
    require('torchvision')
    from swin_backbone.adapters.torchvision import backbone_with_fpn

    return backbone_with_fpn('nano', family=FAMILIES[family], **arguments).body


def by_detectron2(family, out_indices=(0, 1, 2, 3), **arguments):
    if family != 'v1':
        pytest.skip('detectron2 has Swin V1 alone')
    there = sys.modules.pop('swin_backbone.adapters.detectron2', None)
    with recorded():
        from swin_backbone.adapters.detectron2 import D2SwinBackbone
    del sys.modules['swin_backbone.adapters.detectron2']
    if there is not None:
        sys.modules['swin_backbone.adapters.detectron2'] = there
    return D2SwinBackbone([f'res{index + 2}' for index in out_indices], arch='nano', **arguments)


def maps_of(output):
    output = getattr(output, 'feature_maps', output)
    return list(output.values()) if isinstance(output, dict) else list(output)


makers = pytest.mark.parametrize('make', [by_timm, by_transformers, by_torchvision, by_detectron2])
families = pytest.mark.parametrize('family', FAMILIES)


@makers
@families
@pytest.mark.parametrize(('channels', 'size'), [(1, (1, 1)), (4, (3, 200)), (3, (33, 47))])
@torch.no_grad()
def test_channels_and_sizes(make, family, channels, size):
    model = make(family, in_channels=channels, drop_path_rate=0.0).eval()
    x = torch.randn(2, channels, *size)
    maps = maps_of(model(x))
    sides = [tuple(-(-side // (4 << level)) for side in size) for level in range(4)]
    assert [tuple(y.shape) for y in maps] == [(2, 32 << level, *sides[level]) for level in range(4)]
    assert_equal_maps(maps_of(copy.deepcopy(model)(x)), maps)  # copied after a forward


@makers
@families
@torch.no_grad()
def test_bfloat16_and_threads(make, family):
    model = make(family, drop_path_rate=0.0).eval().bfloat16()
    x = torch.randn(1, 3, 45, 70).bfloat16()
    maps = maps_of(model(x))
    assert all(y.dtype == torch.bfloat16 and y.isfinite().all() for y in maps)
    with ThreadPoolExecutor(4) as pool:
        for other in pool.map(torch.no_grad()(lambda _: maps_of(model(x))), range(8)):
            assert_equal_maps(other, maps)


@makers
@families
def test_some_stages_of_which_some_are_frozen(make, family):
    model = make(family, out_indices=(1, 2), frozen_stages=1, drop_path_rate=0.0)
    maps = maps_of(model.train()(torch.randn(1, 3, 45, 70)))
    assert [y.shape[1] for y in maps] == [64, 128]
    sum(y.square().mean() for y in maps).backward()
    got = {
        name.partition('stages.')[2][0]
        for name, p in model.named_parameters()
        if p.grad is not None and '.blocks.' in name
    }
    assert got == {'1', '2'}
