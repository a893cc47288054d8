"""The fast path against the literal algorithm: outputs and gradients, over a grid of shapes."""

import pytest
import torch
from helpers.backends import paper
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone.backends import StageOptions, reference
from swin_backbone.models.layers import SwinBlock

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
HEADS, CHANNELS = 2, 8


def make_block(window_size, shift, small_map='pad', mask_padding=False, strip_tokens=None, qkv_bias=True):
    """A block whose every parameter is far from its initialisation, so that none can be left out unnoticed."""
    block = SwinBlock(
        embed_dims=CHANNELS,
        num_heads=HEADS,
        window_size=window_size,
        shift=shift,
        feedforward_channels=12,
        qkv_bias=qkv_bias,
        qk_scale=None,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.0,
        act_cfg=dict(type='GELU'),
        norm_cfg=dict(type='LN'),
        small_map=small_map,
        mask_padding=mask_padding,
        options=StageOptions(
            backend='auto',
            strip_tokens=strip_tokens,
            with_cp=False,
            kind='v1',
            channels=CHANNELS,
            hidden_channels=12,
            head_dim=CHANNELS // HEADS,
            window_size=window_size,
        ),
    )
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block.eval()


def run_reference(block, x_BHWC):
    attention = block.attn
    return paper.swin_block(
        x_BHWC,
        dict(block.named_parameters()),
        HEADS,
        block.cut.window_size,
        block.cut.shift,
        attention.w_msa.scale,
        block.cut.small_map,
        block.cut.mask_padding,
    )


cases = dict(
    batch=st.integers(1, 3),
    height=st.integers(1, 17),
    width=st.integers(1, 17),
    window_size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    shifted=st.booleans(),
    small_map=st.sampled_from(['pad', 'shrink']),
    mask_padding=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)


def make_case(batch, height, width, window_size, shifted, small_map, mask_padding, dtype, **block):
    shift = (window_size[0] // 2, window_size[1] // 2) if shifted else (0, 0)
    torch.manual_seed(0)
    block = make_block(window_size, shift, small_map, mask_padding, **block).to(dtype)
    return block, torch.randn(batch, height, width, CHANNELS, dtype=dtype)


@settings(deadline=None, max_examples=200)
@given(**cases, qkv_bias=st.booleans(), strip_tokens=st.one_of(st.none(), st.integers(1, 200)))
def test_block_equals_reference_with_all_gradients(dtype, **case):
    block, x_BHWC = make_case(dtype=dtype, **case)
    inputs = [x_BHWC.requires_grad_(), *block.parameters()]
    outputs = block(x_BHWC), run_reference(block, x_BHWC)
    weight = torch.randn_like(x_BHWC)
    gradients = [torch.autograd.grad((output * weight).sum(), inputs) for output in outputs]
    assert (outputs[0] - outputs[1]).abs().max() < TOLERANCE[dtype] * outputs[1].abs().max()
    for fast, literal in zip(*gradients):
        # A bias of the keys has no gradient but rounding's, so small ones are measured against the largest.
        scale = max(literal.abs().max(), 1e-2 * max(gradient.abs().max() for gradient in gradients[1]))
        assert (fast - literal).abs().max() <= TOLERANCE[dtype] * scale


@settings(deadline=None, max_examples=120)
@given(**cases, strip_tokens=st.integers(1, 200))
def test_strips_equal_reference(dtype, **case):
    block, x_BHWC = make_case(dtype=dtype, **case)
    with torch.no_grad():
        fast, literal = block(x_BHWC), run_reference(block, x_BHWC)
    assert (fast - literal).abs().max() < TOLERANCE[dtype] * literal.abs().max()


@settings(deadline=None, max_examples=60)
@given(
    **{**cases, 'mask_padding': st.just(True), 'small_map': st.just('pad')}, strip_tokens=st.sampled_from([None, 50])
)
def test_masked_padding_reaches_no_output(dtype, **case):
    """A map placed in a larger window grid attends as if padding were not there: no bias of qkv gets in."""
    block, x_BHWC = make_case(dtype=dtype, **case)
    shift = block.cut.shift
    with torch.no_grad():
        before = block(x_BHWC)
        H, W = x_BHWC.shape[1:3]
        (Wh, Ww) = case['window_size']
        # The same tokens in the reference, with garbage where the padding would be, and that masked as a region.
        padded = torch.nn.functional.pad(x_BHWC, (0, 0, 0, -W % Ww, 0, -H % Wh), value=3.0)
        C = CHANNELS
        q_weights = dict(block.named_parameters())
        normed = torch.nn.functional.layer_norm(padded, (C,), q_weights['norm1.weight'], q_weights['norm1.bias'])
        x_LNC = reference.window_partition(normed.roll((-shift[0], -shift[1]), (1, 2)), (Wh, Ww))
        regions_HW = reference._regions((H, W), tuple(padded.shape[1:3]), (Wh, Ww), shift, True)
        regions_LN = reference.window_partition(regions_HW[None, :, :, None].expand(len(x_BHWC), -1, -1, -1), (Wh, Ww))[
            ..., 0
        ]
        L, N, _ = x_LNC.shape
        msa = block.attn.w_msa
        q, k, v = msa.qkv(x_LNC).view(L, N, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        logits = msa.scale * q @ k.transpose(-2, -1)
        logits = logits + paper.bias_from_table(msa.relative_position_bias_table, (Wh, Ww), (Wh, Ww))
        logits = logits.masked_fill((regions_LN[:, :, None] != regions_LN[:, None])[:, None], -torch.inf)
        attended = msa.proj((logits.softmax(-1) @ v).transpose(1, 2).reshape(L, N, C))
        attended = reference.window_reverse(attended, (Wh, Ww), tuple(padded.shape[1:3])).roll(shift, (1, 2))
        x = x_BHWC + attended[:, :H, :W]
        after = x + block.ffn(block.norm2(x))
    assert (before - after).abs().max() < TOLERANCE[dtype] * after.abs().max()


def test_reference_regions_are_the_papers_nine():
    regions_HW = reference._regions((8, 8), (8, 8), (4, 4), (2, 2), False)
    assert regions_HW.unique().numel() == 9
    assert (regions_HW[:4, :4] == 0).all()


@pytest.mark.parametrize('strip_tokens', [None, 49])
def test_a_far_token_changes_nothing_across_the_wrap(strip_tokens):
    block = make_block((7, 7), (3, 3), strip_tokens=strip_tokens)
    x_BHWC = torch.randn(1, 14, 14, CHANNELS)
    changed = x_BHWC.clone()
    changed[:, -1, -1] += 1.0
    with torch.no_grad():
        difference_HW = (block(changed) - block(x_BHWC)).abs().sum(-1)[0]
    assert difference_HW[-1, -1] > 0
    assert (difference_HW[:4] == 0).all()
    assert (difference_HW[:, :4] == 0).all()
