"""SwinBackbone: outputs, inputs, and errors for wrong inputs."""

import pytest
import torch
from torch import nn

from swin_backbone import ARCHS, SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.models import SimMIMSwinBackbone, SimMIMSwinV2Backbone


def nano(**arguments):
    return SwinBackbone(arch='nano', drop_path_rate=0.0, **arguments)


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone, SwinMLPBackbone])
@pytest.mark.parametrize('size', [(1, 1), (1, 300), (33, 47), (64, 64), (95, 130)])
@pytest.mark.parametrize('small_map', ['pad', 'shrink'])
def test_emits_four_maps_at_rounded_up_strides(kind, size, small_map):
    model = kind(arch='nano', small_map=small_map).eval()
    for batch in (2, 0):
        outputs = model(torch.randn(batch, 3, *size))
        for output, channels, stride in zip(outputs, (32, 64, 128, 256), (4, 8, 16, 32)):
            assert output.shape == (batch, channels, -(-size[0] // stride), -(-size[1] // stride))
            assert output.is_contiguous()
            assert output.isfinite().all()


def test_any_channels_rectangular_windows_and_chosen_stages():
    backbone = nano(in_channels=5, window_size=(4, 8), out_indices=(3, 1)).eval()
    outputs = backbone(torch.randn(2, 5, 50, 70))
    assert [output.shape[1] for output in outputs] == backbone.out_channels == [64, 256]
    assert backbone.num_features == [32, 64, 128, 256]
    assert not hasattr(backbone, 'norm0')


def test_stages_after_the_last_output_are_not_run():
    backbone = nano(out_indices=(0, 1)).eval()
    ran = []
    for index, stage in enumerate(backbone.stages):
        stage.register_forward_hook(lambda *_, index=index: ran.append(index))
    backbone(torch.randn(1, 3, 32, 32))
    assert ran == [0, 1]


def test_an_explicit_argument_beats_arch():
    backbone = SwinBackbone(arch='base', embed_dims=32, num_heads=(2, 4, 8, 16), depths=(1, 1, 1, 1))
    assert backbone.num_features == [32, 64, 128, 256]
    assert [len(stage.blocks) for stage in backbone.stages] == [1, 1, 1, 1]
    assert SwinBackbone(depths=(1, 1, 1, 1)).num_features[0] == ARCHS['tiny'].embed_dims


@pytest.mark.parametrize('shape', [(3, 32, 32), (1, 4, 32, 32)])
def test_a_bad_input_is_named(shape):
    with pytest.raises(ValueError, match=r'4-D \(B, 3, H, W\), got shape'):
        nano()(torch.zeros(shape))


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize('frozen_stages', [-1, 0, 2, 4])
def test_frozen_stages_stay_frozen(frozen_stages, kind):
    backbone = kind(arch='nano', frozen_stages=frozen_stages, use_abs_pos_embed=True)
    assert backbone.train() is backbone
    assert backbone.eval() is backbone
    backbone.train()
    frozen = []
    if frozen_stages >= 0:
        frozen += ['patch_embed', 'absolute_pos_embed']
    for stage in range(max(0, frozen_stages)):
        frozen += [f'stages.{stage}.', f'norm{stage}.']
    for name, parameter in backbone.named_parameters():
        assert parameter.requires_grad != name.startswith(tuple(frozen)), name
    assert backbone.patch_embed.training == (frozen_stages < 0)
    for stage, module in enumerate(backbone.stages):
        assert module.training == (stage >= frozen_stages)
    outputs = backbone(torch.randn(1, 3, 40, 40))
    assert [output.requires_grad for output in outputs] == [stage >= frozen_stages for stage in range(4)]
    if frozen_stages < 4:
        sum(output.sum() for output in outputs).backward()
        assert all((p.grad is None) == (not p.requires_grad) for n, p in backbone.named_parameters())


def test_with_cp_changes_no_gradient():
    plain = nano(drop_rate=0.1, attn_drop_rate=0.1).train()
    checkpointed = nano(drop_rate=0.1, attn_drop_rate=0.1, with_cp=True).train()
    checkpointed.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 50, 40)
    for backbone in (plain, checkpointed):
        torch.manual_seed(1)
        sum(output.pow(2).mean() for output in backbone(x)).backward()
    for (name, a), b in zip(plain.named_parameters(), checkpointed.parameters()):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_with_cp_keeps_less():
    from benchmarks.timing import bytes_kept  # imports kernels/, which modes/test_without_kernels.py takes away

    x = torch.randn(1, 3, 64, 64)
    plain, checkpointed = (nano(with_cp=with_cp, backend='torch') for with_cp in (False, True))
    assert bytes_kept(checkpointed, x, torch.float32) < 0.3 * bytes_kept(plain, x, torch.float32)


def test_drop_path_rises_linearly_and_drops_whole_samples():
    backbone = SwinBackbone(arch='nano', drop_path_rate=0.7)
    rates = [block.drop_path.drop_prob for stage in backbone.stages for block in stage.blocks]
    assert rates == pytest.approx(torch.linspace(0, 0.7, 8).tolist())
    block = backbone.stages[3].blocks[1].train()
    x_BHWC = torch.randn(64, 2, 2, 256)
    unchanged = (block(x_BHWC) == x_BHWC).flatten(1).all(1)
    assert 15 < unchanged.sum() < 50  # the two branches dropped: 64 * 0.49 = 31 expected
    assert torch.equal(block.eval()(x_BHWC), block(x_BHWC))


def test_dropout_is_active_in_training_only():
    for rate in ('drop_rate', 'attn_drop_rate'):
        backbone = nano(**{rate: 0.5})
        x = torch.randn(1, 3, 32, 32)
        assert not torch.equal(backbone.train()(x)[3], backbone(x)[3]), rate
        assert torch.equal(backbone.eval()(x)[3], backbone(x)[3]), rate


def test_norm_act_scale_and_patch_norm_arguments():
    backbone = nano(
        norm_cfg=dict(type='LN', eps=1e-6),
        act_cfg=dict(type='GELU', approximate='tanh'),
        qk_scale=0.3,
        patch_norm=False,
        qkv_bias=False,
    )
    block = backbone.stages[0].blocks[0]
    assert block.norm1.eps == backbone.norm0.eps == 1e-6
    assert block.ffn.layers[0][1].approximate == 'tanh'
    assert block.attn.w_msa.scale == 0.3
    assert block.attn.w_msa.qkv.bias is None
    assert not any('patch_embed.norm' in name or 'downsample.norm' in name for name in backbone.state_dict())
    assert backbone(torch.randn(1, 3, 20, 20))[0].isfinite().all()


@pytest.mark.parametrize('cls', [SwinMLPBackbone, SwinV2Backbone])
def test_merging_keeps_its_norm_without_patch_norm(cls):
    """mmdet has no Swin-MLP and no Swin V2. In the official code PatchMerging has a norm for any `patch_norm`."""
    backbone = cls(arch='nano', patch_norm=False)
    norms = {name for name in backbone.state_dict() if 'patch_embed.norm' in name or 'downsample.norm' in name}
    stages = {stage for stage, module in enumerate(backbone.stages) if module.downsample}
    assert len(stages) == 3
    assert norms == {f'stages.{stage}.downsample.norm.{leaf}' for stage in stages for leaf in ('weight', 'bias')}


def test_init_weights_follows_the_paper():
    backbone = nano()
    backbone.init_weights()
    for module in backbone.modules():
        if isinstance(module, nn.Linear):
            assert 0.005 < module.weight.std() < 0.03
            assert module.bias is None or (module.bias == 0).all()


@pytest.mark.parametrize('backend', ['auto', 'torch'])
@torch.no_grad()
def test_forwards_take_keywords(backend):
    model, image = SwinBackbone(arch='nano', backend=backend).eval(), torch.randn(1, 3, 40, 44)
    stage, x_BHWC = model.stages[0], model.patch_embed(image)
    windows = stage.blocks[0].windows(x_BHWC)
    attention = stage.blocks[0].attn.w_msa
    for function, arguments in (
        (model.patch_embed, dict(image_BCHW=image)),
        (stage, dict(x_BHWC=x_BHWC, needs_next=True)),
        (stage.normalise_output, dict(x_BHWC=x_BHWC, norm=model.norm0)),
        (attention, dict(x_BHWC=x_BHWC, windows=windows)),
    ):
        first, *others = arguments.items()
        expected = function(*arguments.values())
        for found in (function(**arguments), function(first[1], **dict(others))):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with pytest.raises(TypeError, match='image'):
        model.patch_embed(image=image)


@pytest.mark.parametrize('kind', [SimMIMSwinBackbone, SimMIMSwinV2Backbone])
@torch.no_grad()
def test_simmim_emits_the_last_stage_of_any_number(kind):
    for stages in (2, 3, 5):
        model = kind(embed_dims=8, depths=[1] * stages, num_heads=[1] * stages, strides=(4, 2, 2, 2, 2)[:stages]).eval()
        assert model.out_indices == (stages - 1,)
    image, mask = torch.randn(1, 3, 64, 64), torch.ones(1, 16, 16)
    first, last = model(image, mask, out_indices=(0, 4))
    assert first.shape[1] == 8
    assert torch.equal(last, model(image, mask)[0])
