"""Swin-MLP's fast path against the literal algorithm: outputs and gradients, over a grid of shapes."""

import pytest
import torch
from helpers.backends import paper
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone.backends import BACKENDS, Plan, StageOptions
from swin_backbone.models.layers import SwinMLPBlock

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
HEADS, CHANNELS = 2, 8

cases = dict(
    batch=st.integers(1, 3),
    height=st.integers(1, 17),
    width=st.integers(1, 17),
    window_size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    shifted=st.booleans(),
    small_map=st.sampled_from(['pad', 'shrink']),
    strip_tokens=st.one_of(st.none(), st.integers(1, 200)),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)


def make_case(batch, height, width, window_size, shifted, small_map, strip_tokens, dtype):
    torch.manual_seed(0)
    block = SwinMLPBlock(
        embed_dims=CHANNELS,
        num_heads=HEADS,
        window_size=window_size,
        shift=(window_size[0] // 2, window_size[1] // 2) if shifted else (0, 0),
        feedforward_channels=12,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.0,
        act_cfg=dict(type='GELU'),
        norm_cfg=dict(type='LN'),
        small_map=small_map,
        mask_padding=False,
        options=StageOptions(
            backend='auto',
            strip_tokens=strip_tokens,
            with_cp=False,
            kind='mlp',
            channels=CHANNELS,
            hidden_channels=12,
            head_dim=CHANNELS // HEADS,
            window_size=window_size,
        ),
    )
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block.eval().to(dtype), torch.randn(batch, height, width, CHANNELS, dtype=dtype)


def run_reference(block, x_BHWC):
    cut = block.cut
    return paper.swin_mlp_block(
        x_BHWC, dict(block.named_parameters()), HEADS, cut.window_size, cut.shift, cut.small_map
    )


def assert_equal(fast, literal, dtype):
    assert (fast - literal).abs().max() <= TOLERANCE[dtype] * literal.abs().max()


@settings(deadline=None, max_examples=100)
@given(**cases)
def test_block_equals_reference_with_all_gradients(dtype, **case):
    block, x_BHWC = make_case(dtype=dtype, **case)
    inputs = [x_BHWC.requires_grad_(), *block.parameters()]
    outputs = block(x_BHWC), run_reference(block, x_BHWC)
    weight = torch.randn_like(x_BHWC)
    gradients = [torch.autograd.grad((output * weight).sum(), inputs) for output in outputs]
    for fast, literal in zip((outputs[0], *gradients[0]), (outputs[1], *gradients[1])):
        assert_equal(fast, literal, dtype)


@settings(deadline=None, max_examples=60)
@given(**cases, watched=st.booleans())
def test_in_one_graph_and_by_modules(dtype, watched, **case):
    block, x_BHWC = make_case(dtype=dtype, **case)
    seen = []
    if watched:
        block.spatial_mlp.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        assert_equal(block(x_BHWC, Plan(BACKENDS['graph'])), run_reference(block, x_BHWC), dtype)
        assert_equal(block(x_BHWC), run_reference(block, x_BHWC), dtype)
    assert len(seen) == 2 * watched


@pytest.mark.parametrize('strip_tokens', [None, 16])
def test_what_is_outside_a_window_changes_nothing_in_it(strip_tokens):
    case = dict(batch=1, height=12, width=12, window_size=(4, 4), small_map='pad', dtype=torch.float64)
    for shifted, edge in ((False, 8), (True, 10)):  # where the last window begins
        block, x_BHWC = make_case(shifted=shifted, strip_tokens=strip_tokens, **case)
        changed = x_BHWC.clone()
        changed[:, -1, -1, 0] += 1.0  # of all channels alike LayerNorm would take it away
        with torch.no_grad():
            difference_HW = (block(changed) - block(x_BHWC)).abs().sum(-1)[0]
        assert (difference_HW[edge:, edge:] > 0).all()
        difference_HW[edge:, edge:] = 0
        assert (difference_HW == 0).all()
