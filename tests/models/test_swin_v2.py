"""SwinV2Backbone: names, published sizes, windows and the position bias."""

import inspect

import pytest
import torch

from swin_backbone import ARCHS_V2, SwinBackbone, SwinV2Backbone
from swin_backbone.models.pyramid import SwinPyramid


def nano(**arguments):
    return SwinV2Backbone(**{'arch': 'nano', 'drop_path_rate': 0.0, **arguments})


def test_names_are_mmpretrains():
    """Compare with the names of a block and a stage of mmpretrain's SwinTransformerV2, copied by hand."""
    names = set(nano(extra_norm_every_n_blocks=2).state_dict())
    block = [
        *(f'attn.w_msa.{name}' for name in ('logit_scale', 'q_bias', 'v_bias', 'qkv.weight', 'proj.weight')),
        *(f'attn.w_msa.{name}' for name in ('proj.bias', 'cpb_mlp.0.weight', 'cpb_mlp.0.bias', 'cpb_mlp.2.weight')),
        *(f'{layer}.{leaf}' for layer in ('norm1', 'norm2', 'ffn.layers.0.0', 'ffn.layers.1') for leaf in LEAVES),
    ]
    expected = {f'stages.{stage}.blocks.{index}.{name}' for stage in range(4) for index in (0, 1) for name in block}
    expected |= {f'stages.{stage}.blocks.1.norm3.{leaf}' for stage in range(4) for leaf in LEAVES}
    expected |= {f'stages.{stage}.downsample.reduction.weight' for stage in (1, 2, 3)}
    expected |= {f'stages.{stage}.downsample.norm.{leaf}' for stage in (1, 2, 3) for leaf in LEAVES}
    expected |= {f'patch_embed.{layer}.{leaf}' for layer in ('projection', 'norm') for leaf in LEAVES}
    expected |= {f'norm{stage}.{leaf}' for stage in range(4) for leaf in LEAVES}
    assert names == expected


LEAVES = ('weight', 'bias')


def test_huge_and_giant_have_a_norm_every_sixth_block():
    for arch, last in (('huge', 17), ('giant', 41)):
        with torch.device('meta'):
            backbone = SwinV2Backbone(arch=arch)
        blocks = backbone.stages[2].blocks
        assert [i for i, block in enumerate(blocks) if block.norm3 is not None] == list(range(5, last + 1, 6))
        assert backbone.num_features[0] == ARCHS_V2[arch].embed_dims
    assert all(block.norm3 is None for stage in nano().stages for block in stage.blocks)


def test_windows_of_each_stage_and_rectangles():
    backbone = nano(window_size=(16, 16, 16, (8, 4)), pretrained_window_sizes=(12, 12, (12, 6), 0))
    blocks = [stage.blocks[1] for stage in backbone.stages]
    assert backbone.window_size == ((16, 16), (16, 16), (16, 16), (8, 4))
    assert [block.shift for block in blocks] == [(8, 8), (8, 8), (8, 8), (4, 2)]
    assert [block.attn.w_msa.pretrained_window for block in blocks] == [(12, 12), (12, 12), (12, 6), None]
    assert nano(window_size=(4, 8)).window_size == ((4, 8),) * 4


@pytest.mark.parametrize('window', [12, 16, 24])
def test_all_windows_have_equal_bias_at_equal_offsets(window):
    source = nano(window_size=12)
    target = nano(window_size=window, pretrained_window_sizes=(12,) * 4)
    target.load_state_dict(source.state_dict(), strict=True)
    msa = [backbone.stages[0].blocks[0].attn.w_msa for backbone in (source, target)]
    small, large = (m.position_bias(m.window_size).view(2, *m.window_size, *m.window_size) for m in msa)
    torch.testing.assert_close(large[:, :12, :12, :12, :12], small)


def test_post_norms_start_at_zero():
    backbone = nano()
    backbone.init_weights()
    block = backbone.stages[1].blocks[0].eval()
    x_BHWC = torch.randn(1, 9, 9, 64)
    assert torch.equal(block(x_BHWC), x_BHWC)
    assert (backbone.stages[1].downsample.norm.weight == 1).all()
    assert backbone.stages[0].blocks[0].attn.w_msa.logit_scale.exp().allclose(torch.tensor(10.0))


def test_same_surface_as_swin_backbone():
    v1, v2, shared = (inspect.signature(kind).parameters for kind in (SwinBackbone, SwinV2Backbone, SwinPyramid))
    v2 = {**shared, **v2}
    for name in ('sizes', 'make_block', 'merging_first', 'merging_norm', 'more'):
        del v2[name]
    assert set(v1) - set(v2) == {'qk_scale', 'pretrained', 'convert_weights'}
    assert set(v2) - set(v1) == {'pretrained_window_sizes', 'extra_norm_every_n_blocks'}
    for name in set(v1) & set(v2) - {'window_size', 'pretrain_img_size'}:
        assert v1[name].default == v2[name].default, name
