"""SwinV2Backbone: outputs, inputs, and errors for wrong inputs."""

import inspect

import pytest
import torch
from helpers import reference
from mmengine.registry import MODELS
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from swin_backbone import ARCHS_V2, SwinBackbone, SwinV2Backbone


def nano(**arguments):
    return SwinV2Backbone(**{'arch': 'nano', 'drop_path_rate': 0.0, **arguments})


def away_from_zero(backbone):
    """Draw the post-norms like trained norms. With initial norms of zero, a block is the identity."""
    for name, parameter in backbone.named_parameters():
        if name.rpartition('.')[0].endswith(('norm1', 'norm2')):
            nn.init.normal_(parameter, mean=1.0 if name.endswith('weight') else 0.0, std=0.2)
    return backbone


@pytest.mark.parametrize('size', [(1, 1), (1, 300), (33, 47), (95, 130)])
@pytest.mark.parametrize('small_map', ['pad', 'shrink'])
def test_emits_four_maps_at_rounded_up_strides(size, small_map):
    outputs = nano(small_map=small_map).eval()(torch.randn(2, 3, *size))
    for output, channels, stride in zip(outputs, (32, 64, 128, 256), (4, 8, 16, 32)):
        assert output.shape == (2, channels, -(-size[0] // stride), -(-size[1] // stride))
        assert output.is_contiguous()
        assert output.isfinite().all()


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


@pytest.mark.parametrize(
    ('arch', 'window', 'params', 'flops'),
    [
        ('tiny', 8, 28.35, 5.9),
        ('tiny', 16, 28.35, 6.6),
        ('small', 8, 49.73, 11.5),
        ('small', 16, 49.73, 12.6),
        ('base', 8, 87.92, 20.3),
        ('base', 16, 87.92, 21.8),
    ],
)
@pytest.mark.filterwarnings('ignore:TF32')
@torch.no_grad()
def test_params_and_flops_of_the_published_classifiers(arch, window, params, flops):
    """Millions, and G multiply-adds of a 256x256 picture: 28/50/88 M in microsoft/Swin-Transformer's table.

    A run counts the multiply-adds. The test adds the classifier's head. The count leaves out the position bias, like
    the table.
    """
    with torch.device('meta'):
        backbone = nano(arch=arch, out_indices=(3,), window_size=window, small_map='shrink').eval()
        image = torch.empty(1, 3, 256, 256)
    head = 1000 * backbone.out_channels[-1]
    assert (sum(p.numel() for p in backbone.parameters()) + head + 1000) / 1e6 == pytest.approx(params, abs=0.006)
    with FlopCounterMode(display=False) as counter:
        backbone(image)
    before = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        for stage, side in zip(backbone.stages, (64, 32, 16, 8)):
            for block in stage.blocks:
                block.attn.w_msa.position_bias((min(window, side),) * 2)
    assert round(((before - counter.get_total_flops()) / 2 + head) / 1e9, 1) == flops


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
    v1, v2 = (inspect.signature(backbone).parameters for backbone in (SwinBackbone, SwinV2Backbone))
    assert set(v1) - set(v2) == {'qk_scale', 'pretrained', 'convert_weights'}
    assert set(v2) - set(v1) == {'pretrained_window_sizes', 'extra_norm_every_n_blocks'}
    for name in set(v1) & set(v2) - {'window_size', 'pretrain_img_size'}:
        assert v1[name].default == v2[name].default, name
    assert isinstance(MODELS.build(dict(type='SwinV2Backbone', arch='nano')), SwinV2Backbone)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(arch='colossal'), "arch takes one of .*'giant', got 'colossal'"),
        (dict(pretrained_window_sizes=(12, 12)), r'pretrained_window_sizes takes a list of 4 .*, got \(12, 12\)'),
        (dict(pretrained_window_sizes=12), 'pretrained_window_sizes takes a list of 4 .*, got 12'),
        (dict(pretrained_window_sizes=(12, 12, 12, -6)), r'pretrained_window_sizes\[3\] takes .*, got -6'),
        (dict(extra_norm_every_n_blocks=-1), 'extra_norm_every_n_blocks takes a whole number of at least 0, got -1'),
    ],
)
def test_errors_name_argument_range_and_value(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        nano(**arguments)


@pytest.mark.parametrize('frozen_stages', [0, 2, 4])
def test_frozen_stages_stay_frozen(frozen_stages):
    backbone = away_from_zero(nano(frozen_stages=frozen_stages)).train()
    frozen = ('patch_embed', *(f'{name}{n}.' for n in range(frozen_stages) for name in ('stages.', 'norm')))
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad != name.startswith(frozen), name
    if frozen_stages < 4:
        sum(output.square().sum() for output in backbone(torch.randn(1, 3, 40, 40))).backward()
        assert all((p.grad is None) == (not p.requires_grad) for p in backbone.parameters())


@pytest.mark.parametrize('arguments', [dict(with_cp=True), dict(backend='torch', with_cp=True)])
def test_checkpointing_changes_no_gradient(arguments):
    rates = dict(drop_rate=0.0, drop_path_rate=0.4, extra_norm_every_n_blocks=2)
    plain = away_from_zero(nano(**rates)).double().train()
    other = nano(**arguments, **rates).double().train()
    other.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 50, 40, dtype=torch.double)
    for backbone in (plain, other):
        torch.manual_seed(1)
        sum(output.pow(2).sin().mean() for output in backbone(x)).backward()
    for (name, a), b in zip(plain.named_parameters(), other.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10, msg=name)


def test_dropout_draws_the_same_again_in_backward():
    rates = dict(drop_rate=0.1, attn_drop_rate=0.1)
    backbone = away_from_zero(nano(depths=(2,), num_heads=(2,), out_indices=(0,), **rates)).double().train()
    x = torch.randn(1, 3, 36, 40, dtype=torch.float64)
    weight = backbone.stages[0].blocks[0].attn.w_msa.qkv.weight

    def loss():
        torch.manual_seed(1)
        return backbone(x)[0].sin().sum()

    (gradient,) = torch.autograd.grad(loss(), weight)
    direction, eps = torch.randn_like(weight), 1e-6
    with torch.no_grad():
        weight += eps * direction
        after = loss()
        weight -= 2 * eps * direction
        before = loss()
    torch.testing.assert_close((after - before) / (2 * eps), (gradient * direction).sum(), rtol=1e-5, atol=1e-6)


def test_nothing_wraps_around_on_a_size_that_does_not_divide():
    """The receptive field of two blocks at stage 0: a far corner cannot reach the first window but by wrapping."""
    backbone = away_from_zero(nano(depths=(2,), num_heads=(2,), out_indices=(0,), window_size=4)).eval()
    x = torch.randn(1, 3, 4 * 14, 4 * 15)  # maps of 14 x 15 in windows of 4
    changed = x.clone()
    changed[:, :, -4:] += 1
    changed[:, :, :, -4:] += 1
    with torch.no_grad():
        difference_HW = (backbone(changed)[0] - backbone(x)[0]).abs().sum(1)[0]
    assert difference_HW[-1, -1] > 0
    assert (difference_HW[:8, :8] == 0).all()


@torch.no_grad()
def test_a_backbone_equals_the_reference_at_uneven_sizes():
    arguments = dict(window_size=(4, (3, 5), 4, 4), pretrained_window_sizes=(0, (6, 6), 3, 0), depths=(2, 2, 3, 2))
    backbone = nano(extra_norm_every_n_blocks=2, **arguments).double().eval()
    for name, parameter in backbone.named_parameters():
        nn.init.normal_(parameter, mean=float('norm' in name and name.endswith('weight')), std=0.1)
    image = torch.randn(2, 3, 75, 106, dtype=torch.float64)
    for output, expected in zip(backbone(image), reference.maps(backbone, image)):
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
