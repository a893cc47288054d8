"""Checks from the tests of mmdet's and mmsegmentation's SwinTransformer, for our backbones."""

import pytest
import torch

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone


@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone, SwinMLPBackbone])
@pytest.mark.parametrize('with_cp', [False, True])
def test_a_block(backbone, with_cp):
    block = backbone(arch='nano', with_cp=with_cp).stages[1].blocks[0]
    assert block.with_cp == with_cp
    assert block.ffn.embed_dims == 64
    assert block.ffn.feedforward_channels == 256
    if backbone is not SwinMLPBackbone:
        assert block.attn.w_msa.num_heads == 4
    x_BHWC = torch.randn(1, 28, 28, 64)
    assert block(x_BHWC).shape == x_BHWC.shape


@pytest.mark.parametrize(
    'arguments',
    [
        dict(pretrained=123),
        dict(strides=(2, 2, 2, 2), patch_size=4),
        dict(pretrain_img_size=(224, 224, 224)),
    ],
)
def test_what_is_refused(arguments):
    with pytest.raises((TypeError, ValueError)):
        SwinBackbone(**arguments)


@pytest.mark.parametrize(
    'arguments', [dict(use_abs_pos_embed=True), dict(patch_norm=False), dict(pretrain_img_size=(224,))]
)
@pytest.mark.parametrize(
    ('size', 'maps'),
    [
        ((224, 224), [(56, 56), (28, 28), (14, 14), (7, 7)]),
        ((511, 511), [(128, 128), (64, 64), (32, 32), (16, 16)]),
        ((112, 137), [(28, 35), (14, 18), (7, 9), (4, 5)]),
    ],
)
def test_maps(arguments, size, maps):
    model = SwinBackbone(arch='nano', **arguments)
    model.init_weights()
    outputs = model(torch.randn(1, 3, *size))
    assert [output.shape for output in outputs] == [(1, 32 << i, *map_size) for i, map_size in enumerate(maps)]


def test_all_stages_frozen():
    model = SwinBackbone(arch='nano', frozen_stages=4).train()
    assert not any(parameter.requires_grad for parameter in model.parameters())
