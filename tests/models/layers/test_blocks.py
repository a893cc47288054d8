"""Blocks of all kinds against the literal algorithms: outputs and gradients, over shapes drawn by hypothesis."""

import pytest
import torch
from helpers import reference
from helpers.models.blocks import make_block
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone.models.layers import SwinBlock, SwinMLPBlock, SwinV2Block

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
CHANNELS = 16


def with_any_scale(block):
    """Draw the scales of Swin V2 below and above the clamp, log 100 = 4.6."""
    if isinstance(block, SwinV2Block):
        torch.nn.init.uniform_(block.attn.w_msa.logit_scale, 0, 6)
    return block


cases = dict(
    kind=st.sampled_from([SwinBlock, SwinV2Block, SwinMLPBlock]),
    batch=st.integers(1, 3),
    height=st.integers(1, 17),
    width=st.integers(1, 17),
    window_size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    shifted=st.booleans(),
    small_map=st.sampled_from(['pad', 'shrink']),
    mask_padding=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    backend=st.sampled_from(['auto', 'torch']),
)
of_v1 = dict(qkv_bias=st.booleans())
of_v2 = dict(
    qkv_bias=st.booleans(),
    extra_norm=st.booleans(),
    pretrained_window=st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(1, 9))),
)


@settings(max_examples=80)
@given(data=st.data(), **cases)
def test_block_equals_reference_with_all_gradients(
    data, dtype, kind, batch, height, width, window_size, shifted, **case
):
    case |= data.draw(st.fixed_dictionaries({SwinBlock: of_v1, SwinV2Block: of_v2, SwinMLPBlock: {}}[kind]))
    torch.manual_seed(0)
    shift = (window_size[0] // 2, window_size[1] // 2) if shifted else (0, 0)
    block = with_any_scale(make_block(kind, window_size, shift, **case)).to(dtype)
    x_BHWC = torch.randn(batch, height, width, CHANNELS).to(dtype)
    inputs = [x_BHWC.requires_grad_(), *block.parameters()]
    outputs = block(x_BHWC), reference.block(block, x_BHWC)
    weight = torch.randn_like(x_BHWC)
    gradients = [torch.autograd.grad((output * weight).sum(), inputs) for output in outputs]
    assert (outputs[0] - outputs[1]).abs().max() < TOLERANCE[dtype] * outputs[1].abs().max()
    largest = max(gradient.abs().max() for gradient in gradients[1])
    for fast, literal in zip(*gradients):  # a bias of the keys has no gradient but rounding's
        assert (fast - literal).abs().max() <= TOLERANCE[dtype] * max(literal.abs().max(), 1e-2 * largest)
    with torch.no_grad():
        torch.testing.assert_close(block(x_BHWC), outputs[0])


@pytest.mark.parametrize('backend', ['auto', 'torch'])
@pytest.mark.parametrize('size', [(8, 8), (7, 6)])
@pytest.mark.parametrize('kind', [SwinBlock, SwinV2Block])
def test_a_far_token_changes_nothing_across_the_wrap(kind, size, backend):
    """Also for maps of no whole number of windows: padding after the roll would join the far edges."""
    block, x_BHWC = make_block(kind, (4, 4), (2, 2), backend=backend), torch.randn(1, *size, CHANNELS)
    changed = x_BHWC.clone()
    changed[:, -1, -1, 0] += 1.0  # LayerNorm would remove a change of all channels
    with torch.no_grad():
        difference_HW = (block(changed) - block(x_BHWC)).abs().sum(-1)[0]
    assert difference_HW[-1, -1] > 0
    assert (difference_HW[:2] == 0).all()
    assert (difference_HW[:, :2] == 0).all()


def test_the_references_regions_are_the_papers_nine():
    regions_HW = reference._regions((8, 8), (8, 8), (4, 4), (2, 2), False)
    assert regions_HW.unique().numel() == 9
    assert (regions_HW[:4, :4] == 0).all()


@pytest.mark.parametrize('name', ['drop_path.drop_prob', 'ffn.layers.2.p', 'attn.w_msa.proj_drop.p'])
def test_a_rate_of_one_set_by_hand_is_torchs(name):
    """The library and torch agree on finite numbers."""
    results = []
    for backend in ('auto', 'torch'):
        torch.manual_seed(0)
        block, x_BHWC = make_block(SwinBlock, (4, 4), (0, 0), backend=backend).train(), torch.randn(2, 8, 8, CHANNELS)
        owner, _, attribute = name.rpartition('.')
        setattr(block.get_submodule(owner), attribute, 1.0)
        torch.manual_seed(1)
        y_BHWC = block(x_BHWC.requires_grad_())
        results.append((y_BHWC, *torch.autograd.grad(y_BHWC.sum(), [x_BHWC, *block.parameters()])))
    for auto, by_torch in zip(*results):
        assert torch.equal(auto.isfinite(), by_torch.isfinite())
