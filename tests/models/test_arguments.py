"""Arguments of backbones: values with silent consequences are refused by name."""

import inspect
import re

import pytest
import torch

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone

BACKBONES = [SwinBackbone, SwinV2Backbone, SwinMLPBackbone]
# Two stages: (height, width) and a list with an entry for every stage have equal lengths.
SMALL = dict(embed_dims=8, depths=(1, 2), num_heads=(1, 2), out_indices=(1,), window_size=2)


def build(backbone=SwinBackbone, **given):
    return backbone(**{**SMALL, **given})


@pytest.mark.parametrize('backbone', BACKBONES)
def test_every_argument_is_documented(backbone):
    documented = re.findall(r'^        (\w+): ', SwinBackbone.__doc__ + backbone.__doc__, re.M)
    assert set(inspect.signature(backbone).parameters) <= set(documented)


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (dict(arch='huge'), "arch takes one of 'nano', .*, got 'huge'"),
        (dict(pretrain_img_size='swin-t'), "pretrain_img_size takes .* size is a keyword, arch='tiny'.*got 'swin-t'"),
        (dict(pretrain_img_size=(112, 112, 112)), r'pretrain_img_size takes .* pair .*, got \(112, 112, 112\)'),
        (dict(embed_dims=31), r'num_heads\[0\] takes a divisor of .* embed_dims \* 1 = 31, got 2'),
        (dict(embed_dims=0), 'embed_dims takes a whole number of at least 1, got 0'),
        (dict(depths=(2, 2, 2.5, 2)), 'depths takes a whole number of at least 1, got 2.5'),
        (dict(num_heads=(2, 4)), r'depths and num_heads take one entry for each stage, .*num_heads=\(2, 4\)'),
        (dict(strides=(4, 2, 2, 2, 2)), r'strides takes a list of 4 whole numbers .*, got \(4, 2, 2, 2, 2\)'),
        (dict(patch_size=3), r'patch_size takes strides\[0\] = 4, because patches do not overlap, got 3'),
        (dict(window_size=(7, -1)), 'window_size takes a whole number of at least 1, got -1'),
        (dict(window_size=(7, 7, 14)), r'window_size takes .* a list of 4, one for each stage, got \(7, 7, 14\)'),
        (dict(out_indices=(0, 4)), r'out_indices takes a list of different stages from 0 to 3, got \(0, 4\)'),
        (dict(out_indices=(-1,)), r'out_indices takes a list of different stages from 0 to 3, got \(-1,\)'),
        (dict(out_indices=()), r'out_indices takes a list of different stages from 0 to 3, got \(\)'),
        (dict(out_indices=(True,)), 'out_indices takes a whole number, got True'),
        (dict(out_indices=[1.0]), 'out_indices takes a whole number, got 1.0'),
        (dict(frozen_stages=5), 'frozen_stages takes -1 to 4, the number of stages, got 5'),
        (dict(pretrained=123), 'pretrained takes a path or an address, got 123'),
        (dict(backend='eager'), "backend takes one of 'auto', .*, got 'eager'"),
        (dict(small_map='crop'), "small_map takes one of 'pad', 'shrink', got 'crop'"),
        (dict(drop_path_rate=20), 'drop_path_rate takes a rate from 0 to below 1, got 20'),
        (dict(drop_path_rate=-0.3), 'drop_path_rate takes a rate from 0 to below 1, got -0.3'),
        (dict(drop_path_rate=1), 'drop_path_rate takes a rate from 0 to below 1, got 1'),
        (dict(drop_path_rate='0.1'), "drop_path_rate takes a rate from 0 to below 1, got '0.1'"),
        (dict(mlp_ratio=0), 'mlp_ratio takes a number of at least 1 / 32, one hidden channel, got 0'),
        (dict(mlp_ratio=0.03), 'mlp_ratio takes a number of at least 1 / 32, one hidden channel, got 0.03'),
        (dict(mlp_ratio=float('nan')), 'mlp_ratio takes a number of at least 1 / 32, one hidden channel, got nan'),
        (dict(pretrained='a', init_cfg=dict(type='Xavier')), "pretrained and init_cfg exclude each other, got 'a'"),
    ],
)
def test_errors_name_argument_range_and_value(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SwinBackbone(**{'arch': 'nano', **given})


@pytest.mark.parametrize('stages', [(), (-1,), (4,), (0, 0)])
def test_stages_of_a_call_are_checked(stages):
    with pytest.raises(ValueError, match='out_indices takes a list of different stages from 0 to 3, got '):
        SwinBackbone(arch='nano')(torch.randn(1, 3, 32, 32), out_indices=stages)


@pytest.mark.parametrize('windows', [(12, 12), 12, (12, 12, 12, -6)])
def test_windows_of_pre_training_are_one_for_each_stage(windows):
    with pytest.raises((TypeError, ValueError), match=r'pretrained_window_sizes.* takes .*, got '):
        SwinV2Backbone(arch='nano', pretrained_window_sizes=windows)


@pytest.mark.parametrize('backbone', BACKBONES)
def test_two_ints_are_height_and_width_of_two_stages_too(backbone):
    assert build(backbone, window_size=[3, 13]).window_size == ((3, 13), (3, 13))
    assert build(backbone, window_size=[(3, 3), (13, 13)]).window_size == ((3, 3), (13, 13))
    assert build(backbone, window_size=[3, (13, 5)]).window_size == ((3, 3), (13, 5))
    four = backbone(arch='nano', window_size=(7, 7, (14, 5), 7))
    assert four.window_size == ((7, 7), (7, 7), (14, 5), (7, 7))
    assert [[block.shift for block in stage.blocks] for stage in four.stages][2] == [(0, 0), (7, 2)]


def test_fewer_stages_have_the_first_of_the_default_strides():
    for strides in ((4, 2, 2, 2), [4, 2]):
        assert [stage.downsample and stage.downsample.stride for stage in build(strides=strides).stages] == [2, None]
    for strides in ((4, 2, 2), (8, 2, 2, 2)):
        with pytest.raises(ValueError, match='strides'):
            build(strides=strides, patch_size=strides[0])
