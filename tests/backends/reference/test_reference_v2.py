"""Swin V2's fast path against the literal algorithm: outputs and gradients, over a grid of shapes."""

import pytest
import torch
import torch.nn.functional as F
from helpers.backends import paper
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone.backends import BACKENDS, Plan, StageOptions
from swin_backbone.backends.functions.cosine import cosine_scale, normalise_qk
from swin_backbone.models.layers import PatchMerging, SwinV2Block

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
HEADS, CHANNELS = 2, 8


def make_block(
    window_size, shift, pretrained_window=None, extra_norm=False, qkv_bias=True, strip_tokens=None, **arguments
):
    """A block whose every parameter is far from its initialisation, so that none can be left out unnoticed."""
    arguments = {'small_map': 'pad', 'mask_padding': False, **arguments}
    block = SwinV2Block(
        embed_dims=CHANNELS,
        num_heads=HEADS,
        window_size=window_size,
        pretrained_window=pretrained_window,
        shift=shift,
        feedforward_channels=12,
        qkv_bias=qkv_bias,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.0,
        act_cfg=dict(type='GELU'),
        norm_cfg=dict(type='LN'),
        extra_norm=extra_norm,
        options=StageOptions(
            backend='auto',
            strip_tokens=strip_tokens,
            with_cp=False,
            kind='v2',
            channels=CHANNELS,
            hidden_channels=12,
            head_dim=CHANNELS // HEADS,
            window_size=window_size,
        ),
        **arguments,
    )
    for name, parameter in block.named_parameters():
        torch.nn.init.normal_(parameter, std=0.5 if 'cpb' not in name else 0.1)
    torch.nn.init.uniform_(block.attn.w_msa.logit_scale, 0, 6)  # on both sides of the clamp, log 100 = 4.6
    return block.eval()


def run_reference(block, x_BHWC):
    attention = block.attn
    return paper.swin_v2_block(
        x_BHWC,
        dict(block.named_parameters()),
        HEADS,
        block.cut.window_size,
        block.cut.shift,
        attention.w_msa.pretrained_window,
        block.cut.small_map,
        block.cut.mask_padding,
    )


cases = dict(
    batch=st.integers(1, 3),
    height=st.integers(1, 13),
    width=st.integers(1, 13),
    window_size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    pretrained_window=st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(1, 9))),
    shifted=st.booleans(),
    small_map=st.sampled_from(['pad', 'shrink']),
    mask_padding=st.booleans(),
    qkv_bias=st.booleans(),
    extra_norm=st.booleans(),
)


def make_case(batch, height, width, window_size, shifted, dtype=torch.float64, **block):
    shift = (window_size[0] // 2, window_size[1] // 2) if shifted else (0, 0)
    torch.manual_seed(0)
    return make_block(window_size, shift, **block).to(dtype), torch.randn(batch, height, width, CHANNELS, dtype=dtype)


@settings(deadline=None, max_examples=60)
@given(**cases, strip_tokens=st.one_of(st.none(), st.integers(1, 100)))
def test_block_equals_reference_with_all_gradients(**case):
    block, x_BHWC = make_case(**case)
    inputs = [x_BHWC.requires_grad_(), *block.parameters()]
    outputs = block(x_BHWC), run_reference(block, x_BHWC)
    weight = torch.randn_like(x_BHWC)
    gradients = [torch.autograd.grad((output * weight).sum(), inputs) for output in outputs]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-10 * outputs[1].abs().max()
    largest = max(gradient.abs().max() for gradient in gradients[1])
    for fast, literal in zip(*gradients):
        assert (fast - literal).abs().max() <= 1e-10 * max(literal.abs().max(), 1e-2 * largest)


@settings(deadline=None, max_examples=40)
@given(**cases, strip_tokens=st.integers(1, 100), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_strips_equal_reference(dtype, **case):
    block, x_BHWC = make_case(dtype=dtype, **case)
    with torch.no_grad():
        fast, literal = block(x_BHWC), run_reference(block, x_BHWC)
    assert (fast - literal).abs().max() < TOLERANCE[dtype] * literal.abs().max()


@pytest.mark.parametrize('strip_tokens', [None, 30])
def test_a_block_run_by_its_modules_equals_reference(strip_tokens):
    """A hook on a layer inside, and the modules are called themselves."""
    block = make_block((4, 3), (2, 1), extra_norm=True, strip_tokens=strip_tokens).double()
    seen = []
    block.attn.w_msa.qkv.register_forward_hook(lambda *_: seen.append(1))
    x_BHWC = torch.randn(2, 7, 9, CHANNELS, dtype=torch.float64)
    torch.testing.assert_close(block(x_BHWC), run_reference(block, x_BHWC), rtol=1e-10, atol=1e-10)
    assert seen


@pytest.mark.parametrize('strip_tokens', [None, 16])
@pytest.mark.parametrize('size', [(8, 8), (7, 6)])
def test_a_far_token_changes_nothing_across_the_wrap(strip_tokens, size):
    """Also where the map is no multiple of the window: padding after the roll would let the far edges meet."""
    block = make_block((4, 4), (2, 2), strip_tokens=strip_tokens)
    x_BHWC = torch.randn(1, *size, CHANNELS)
    changed = x_BHWC.clone()
    changed[:, -1, -1] += 1.0
    with torch.no_grad():
        difference_HW = (block(changed) - block(x_BHWC)).abs().sum(-1)[0]
    assert difference_HW[-1, -1] > 0
    assert (difference_HW[:2] == 0).all()
    assert (difference_HW[:, :2] == 0).all()


def test_masked_padding_reaches_no_output():
    """A 5 x 5 map in windows of 8, padding masked, is what windows of 5 make of it at the same coordinates."""
    block = make_block((8, 8), (0, 0), pretrained_window=(6, 6), mask_padding=True)
    free = make_block((5, 5), (0, 0), pretrained_window=(6, 6))
    free.load_state_dict(block.state_dict())
    x_BHWC = torch.randn(2, 5, 5, CHANNELS)
    torch.testing.assert_close(block(x_BHWC), free(x_BHWC))


def test_queries_and_keys_are_normalised_and_padding_has_no_gradient():
    qkv_T3C = torch.randn(6, 3 * CHANNELS, dtype=torch.float64)
    qkv_T3C[-1, : 2 * CHANNELS] = 0  # padding under a backbone at its initialisation
    logit_scale = torch.tensor([1.0, 7.0], dtype=torch.float64).view(2, 1, 1)
    grad = torch.randn_like(qkv_T3C)
    inputs = qkv_T3C.requires_grad_(), cosine_scale(logit_scale).requires_grad_()
    y_T3C = normalise_qk(*inputs)
    (expected, _) = torch.autograd.grad(y_T3C, inputs, grad)
    torch.autograd.gradcheck(normalise_qk, (qkv_T3C[:-1].detach().requires_grad_(), inputs[1]))
    assert (expected[-1, : 2 * CHANNELS] == 0).all()
    q, k, _ = y_T3C[:-1].unflatten(1, (3, 2, -1)).unbind(1)
    literal_q, literal_k, _ = qkv_T3C[:-1].unflatten(1, (3, 2, -1)).unbind(1)
    torch.testing.assert_close(q, F.normalize(literal_q, dim=-1) * torch.tensor([[2.718281828459045], [100.0]]))
    torch.testing.assert_close(k, F.normalize(literal_k, dim=-1))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_takes_what_would_overflow_a_sum_of_squares(dtype):
    qkv_T3C = torch.full((3, 3 * CHANNELS), 2000.0, dtype=dtype)  # 4 x 2000^2 is far beyond float16
    qkv_T3C[1, : 2 * CHANNELS] = 0
    qkv_T3C.requires_grad_()
    scale_h = torch.tensor([10.0, 100.0])
    y_T3C = normalise_qk(qkv_T3C, scale_h)
    assert y_T3C.dtype == dtype
    assert y_T3C[0, :CHANNELS].tolist() == [5.0] * 4 + [50.0] * 4
    (expected,) = torch.autograd.grad(y_T3C.float().sum(), qkv_T3C)
    assert expected.isfinite().all()


@pytest.mark.parametrize('strip_tokens', [None, 4])
@pytest.mark.parametrize('size', [(6, 8), (5, 7)])
def test_patch_merging_reduces_before_its_norm(size, strip_tokens):
    merging = PatchMerging(4, 6, 2, dict(type='LN'), post_norm=True).double()
    for parameter in merging.parameters():
        torch.nn.init.normal_(parameter)
    x_BHWC = torch.randn(2, *size, 4, dtype=torch.float64, requires_grad=True)
    padded = F.pad(x_BHWC, (0, 0, 0, size[1] % 2, 0, size[0] % 2)).permute(0, 3, 1, 2)
    unfolded_BTC = F.unfold(padded, 2, stride=2).transpose(1, 2)
    literal = F.layer_norm(unfolded_BTC @ merging.reduction.weight.t(), (6,), merging.norm.weight, merging.norm.bias)
    fast = merging(x_BHWC, Plan(BACKENDS['eager'], strip_tokens=strip_tokens))
    assert fast.shape == (2, 3, 4, 6)
    torch.testing.assert_close(fast.flatten(1, 2), literal)
    inputs = [x_BHWC, *merging.parameters()]
    weight = torch.randn_like(literal)
    gradients = [torch.autograd.grad((y.flatten() * weight.flatten()).sum(), inputs) for y in (fast, literal)]
    for gradient, expected in zip(*gradients):
        torch.testing.assert_close(gradient, expected)
