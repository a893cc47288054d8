"""Backbones take the compiled operators. tests/models compare results with the reference."""

import pytest
import torch
from helpers.kernels import refusal
from torch import nn

from benchmarks.timing import bytes_kept
from swin_backbone import SwinBackbone, SwinV2Backbone

KINDS = SwinBackbone, SwinV2Backbone


def gradients(model, x):
    """Return gradients of all weights, with equal random numbers at every call."""
    torch.manual_seed(3)
    return torch.autograd.grad(sum(y.float().sin().mean() for y in model(x)), list(model.parameters()))


@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize('kind', KINDS)
def test_every_block_of_a_forward_and_of_a_training_step(kind, with_cp, calls):
    model, x = kind(arch='nano', drop_path_rate=0.1, with_cp=with_cp), torch.randn(2, 3, 70, 90)
    with torch.no_grad():
        assert all(y.is_contiguous() for y in model.eval()(x))
    assert len(calls) == 8
    ours = gradients(model.train(), x)
    assert len(calls) == 16
    model.backend = 'torch'
    for one, truth in zip(ours, gradients(model, x)):
        assert (one - truth).square().mean().sqrt() < 1e-5 * (1e-4 + truth.square().mean().sqrt()) + 1e-7


def test_a_block_keeps_its_map_alone_for_backward():
    block, x_BHWC = SwinBackbone(arch='nano').stages[0].blocks[0].train(), torch.randn(1, 56, 56, 32)
    kept = bytes_kept(nn.Sequential(nn.Identity(), block), x_BHWC.requires_grad_(), torch.float32)
    assert kept <= 49 * 49 * (block.attn.w_msa.num_heads * 4 + 8)  # the position bias from the table, and the index


def test_no_native_block_for_float64_dropout_or_other_backends(calls):
    x = torch.randn(1, 3, 64, 64)
    SwinBackbone(arch='nano', drop_rate=0.1).train()(x)
    with torch.no_grad():
        SwinBackbone(arch='nano').double()(x.double())
        SwinBackbone(arch='nano', backend='torch').eval()(x)
        SwinBackbone(arch='nano', act_cfg=dict(type='GELU', approximate='tanh')).eval()(x)
        with torch.backends.mkldnn.flags(enabled=False):
            SwinBackbone(arch='nano').eval()(x)
    assert not calls


@pytest.mark.usefixtures('_bf16')
@torch.no_grad()
def test_autocast_to_half_precision_gives_float32(calls):
    model, x = SwinBackbone(arch='nano').eval(), torch.randn(1, 3, 70, 90)
    maps = model(x)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast('cpu', dtype):
            results = model(x)
        assert all(y.dtype == torch.float32 for y in results)
        assert all(map(torch.equal, results, maps)) == (dtype is torch.float16)  # computed in float32
    assert len(calls) == 24


def test_a_dtype_without_products_has_a_reason():
    assert refusal(torch.float64).endswith('not torch.float64.')


def test_a_patch_merging_that_the_library_lacks_is_named():
    other_stride, with_bias = (SwinBackbone(arch='nano', backend='native', strides=(4, 2, n, 2)) for n in (3, 2))
    with_bias.stages[0].downsample.reduction.bias = nn.Parameter(torch.zeros(64))
    for model, reason in (
        (other_stride, 'merges patches with a stride of 2, not 3'),
        (with_bias, 'has no bias in patch merging, and the reduction has one'),
    ):
        with pytest.raises(ValueError, match=f"'native' cannot compute this: The compiled library {reason}"):
            model(torch.randn(1, 3, 64, 64))


@torch.no_grad()
def test_a_projection_names_what_is_wrong_with_the_input_or_the_weight():
    merging = SwinBackbone(arch='nano', backend='native').eval().stages[0].downsample
    with pytest.raises(ValueError, match=r'takes a batch of four dimensions, not \[64, 64, 32\]'):
        merging(torch.randn(64, 64, 32))
    merging.reduction.weight = None
    with pytest.raises(ValueError, match='The weight of PatchMerging is not as it was built'):
        merging(torch.randn(1, 64, 64, 32))
