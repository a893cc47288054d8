"""Maps in every framework equal the maps of `SwinBackbone` bit for bit, and survive copies, files and compiling."""

import pytest
import torch
from helpers.adapters.detectron2_interface import recorded
from helpers.adapters.frameworks import (
    assert_compiled,
    assert_compiles,
    assert_equal_maps,
    assert_survives,
    require,
)
from helpers.checkpoints.origins import official_backbone
from helpers.models.small_models import Detector, randomised

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone, load_checkpoint

pytestmark = pytest.mark.peer
FAMILIES = {'v1': SwinBackbone, 'v2': SwinV2Backbone, 'mlp': SwinMLPBackbone}


@pytest.fixture(autouse=True)
def recorded_detectron2():
    with recorded():
        yield


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
    from swin_backbone.adapters.detectron2 import D2SwinBackbone

    return D2SwinBackbone([f'res{index + 2}' for index in out_indices], arch='nano', **arguments)


def maps_of(output):
    output = getattr(output, 'feature_maps', output)
    return list(output.values()) if isinstance(output, dict) else list(output)


makers = pytest.mark.parametrize('make', [by_timm, by_transformers, by_torchvision, by_detectron2])
families = pytest.mark.parametrize('family', FAMILIES)
X = torch.linspace(-1, 1, 2 * 3 * 45 * 70).view(2, 3, 45, 70).sin()


def backbone_in(model):
    return next(module for module in model.modules() if hasattr(module, 'stages'))


@makers
@families
@pytest.mark.parametrize(('channels', 'size'), [(1, (1, 1)), (4, (3, 200)), (3, (33, 47))])
@torch.no_grad()
def test_maps_are_the_backbones_to_the_bit(make, family, channels, size):
    model = make(family, in_channels=channels, drop_path_rate=0.0).eval()
    backbone = FAMILIES[family](arch='nano', in_channels=channels).eval()
    backbone.load_state_dict(backbone_in(model).state_dict())
    x = torch.randn(2, channels, *size)
    assert_equal_maps(maps_of(model(x)), backbone(x))


@makers
def test_copies_files_compile_export_and_the_library(make):
    model = make('v1', drop_path_rate=0.0, depths=(1, 1, 1, 1)).eval()
    assert_compiled(lambda: model(X), blocks=4)
    assert_survives(model, lambda model: maps_of(model(X))[-1])
    assert_compiles(lambda x: tuple(maps_of(model(x))), X)
    exported = torch.export.export(model, (X,)).module()
    for one, other in zip(maps_of(exported(X)), maps_of(model(X))):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@makers
@torch.no_grad()
def test_a_state_dict_of_the_official_code(make):
    source, model = randomised(), make('v1', drop_path_rate=0.0).eval()
    model.load_state_dict(official_backbone(source.state_dict()))
    assert_equal_maps(maps_of(model(X)), source(X))


@makers
@torch.no_grad()
def test_a_state_dict_of_a_detector_with_windows_of_a_rectangle(make, tmp_path):
    """81 rows are for 5 x 5 or 2 x 14: the metadata of a state_dict tells."""
    whole = Detector(randomised(window_size=(2, 14)))
    torch.save(whole.state_dict(), tmp_path / 'weights.pth')
    expected, model = (SwinBackbone(arch='nano', drop_path_rate=0.0).eval(), make('v1', drop_path_rate=0.0).eval())
    load_checkpoint(expected, tmp_path / 'weights.pth')
    prefixed = whole.state_dict()
    for key in list(prefixed):
        prefixed[f'student.{key}'] = prefixed.pop(key)
    prefixed._metadata['student.backbone'] = prefixed._metadata.pop('backbone')
    model.load_state_dict(prefixed)
    assert_equal_maps(maps_of(model(X)), expected(X))


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
