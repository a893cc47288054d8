"""A block by the compiled operator is the reference's, for any map and window, in float32 and in bfloat16."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.backends.native_blocks import block_weights, by_operator, by_reference, cases, random_weights, rms
from hypothesis import assume, given, settings

from swin_backbone.backends.native import why_not_in
from swin_backbone.backends.native.layers import pack
from swin_backbone.backends.weight_cache import WeightCache


@settings(max_examples=60, deadline=None)
@given(cases())
def test_float32_is_the_reference(case):
    difference = by_operator(*case) - by_reference(*case)
    assert difference.abs().max() < 1e-5


@pytest.mark.usefixtures('_bf16')
@settings(max_examples=40, deadline=None)
@given(cases())
def test_bfloat16_is_nearer_to_float32_than_autocast(case):
    assume(case[0].numel() > 4096)  # of a few numbers chance decides
    truth = by_reference(*case)
    with torch.autocast('cpu', torch.bfloat16):
        autocast = by_reference(*case)
    assert rms(by_operator(*case, dtype=torch.bfloat16) - truth) < rms(autocast - truth)


@pytest.mark.parametrize('v2', [False, True])
def test_drop_path_multiplies_each_branch_of_each_image(v2):
    x, weights = torch.randn(2, 9, 8, 32), random_weights(32, 2, (4, 4), v2)
    case = weights, 2, (4, 4), (2, 2), False
    both = by_operator(x, *case, drop_path_2B=torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    assert torch.equal(both[0], x[0])
    torch.testing.assert_close(both[1], by_reference(x, *case)[1], atol=1e-5, rtol=0)
    half = by_operator(x, *case, drop_path_2B=torch.full((2, 2), 0.5))
    quarter_weights = {**weights}
    for name in ('norm1', 'norm2') if v2 else ('attn.w_msa.proj', 'ffn.layers.1'):
        for end in ('weight', 'bias'):
            quarter_weights[f'{name}.{end}'] = weights[f'{name}.{end}'] / 2
    torch.testing.assert_close(half, by_reference(x, quarter_weights, *case[1:]), atol=1e-5, rtol=0)


def test_large_logits_neither_overflow_nor_lose_the_largest():
    x, weights = torch.randn(1, 14, 14, 32), random_weights(32, 1, (7, 7), v2=False)
    weights['attn.w_msa.qkv.weight'] *= 10
    case = x, weights, 1, (7, 7), (3, 3), False
    torch.testing.assert_close(by_operator(*case), by_reference(*case), atol=1e-3, rtol=0)


@pytest.mark.usefixtures('_bf16')
def test_large_logits_in_bfloat16_are_about_as_near_as_autocasts():
    x, weights = torch.randn(2, 14, 14, 32), random_weights(32, 1, (7, 7), v2=False)
    weights['attn.w_msa.qkv.weight'] *= 10  # softmax without a maximum would overflow
    case = x, weights, 1, (7, 7), (3, 3), False
    truth = by_reference(*case)
    with torch.autocast('cpu', torch.bfloat16):
        autocast = by_reference(*case)
    assert rms(by_operator(*case, dtype=torch.bfloat16) - truth) < 1.5 * rms(autocast - truth)


def nan_in_one_window(dtype):
    x, weights = torch.randn(1, 8, 8, 32), random_weights(32, 1, (4, 4), v2=False)
    x[0, 0, 0] = torch.nan
    return by_operator(x, weights, 1, (4, 4), (0, 0), False, dtype)[0].isnan().any(-1)


def test_nan_stays_in_its_window():
    nan_HW = nan_in_one_window(torch.float32)
    assert nan_HW[:4, :4].all()
    assert nan_HW.sum() == 16


@pytest.mark.usefixtures('_bf16')
def test_nan_stays_in_its_window_in_bfloat16():
    nan_HW = nan_in_one_window(torch.bfloat16)
    assert nan_HW[:4, :4].all()
    assert nan_HW.sum() == 16


def test_same_bits_whatever_the_number_of_threads_and_from_several_python_threads():
    x, weights = torch.randn(2, 33, 40, 64), random_weights(64, 2, (7, 7), v2=False)
    run = lambda: by_operator(x, weights, 2, (7, 7), (3, 3), False)  # noqa: E731
    threads, first = torch.get_num_threads(), run()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert torch.equal(run(), first)
    finally:
        torch.set_num_threads(threads)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(result, first) for result in pool.map(lambda _: run(), range(8)))


def test_operators_have_a_fake_for_compile_and_export():
    weights = random_weights(32, 2, (4, 4), v2=False)
    w, settings = block_weights(weights, 2, (4, 4))
    packed = pack(
        WeightCache(), (w.qkv_weight, w.proj_weight, w.fc1_weight, w.fc2_weight), torch.float32, (16, 1, 1, 1)
    )
    vectors = [w.norm1_weight, None, w.qkv_bias, w.proj_bias, None, w.norm2_bias, w.fc1_bias, w.fc2_bias, None, None]
    args = packed, vectors, w.position_bias_hNN, None, None, 2, [4, 4], [2, 2], False, settings.scale, [1e-5, 1e-5]
    x, ops, which = torch.randn(1, 9, 10, 32), torch.ops.swin_backbone, ('test_schema', 'test_faketensor')
    torch.library.opcheck(ops.block.default, (x, *args), test_utils=which)
    torch.library.opcheck(ops.block_.default, (x, *args), test_utils=which)
    torch.library.opcheck(ops.block_saving.default, (x, *args), test_utils='test_schema')
    linear = (w.qkv_weight, w.proj_weight, w.fc1_weight, w.fc2_weight)
    turned = [ops.pack_linear(a, torch.float32, unit, True) for a, unit in zip(linear, (1, 16, 1, 1))]
    gradient = torch.randn_like(x)
    torch.library.opcheck(
        ops.block_backward.default, (x, gradient, packed, turned, *args[1:]), test_utils='test_schema'
    )
    ours = ops.block_backward(x, gradient, packed, turned, *args[1:])
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = ops.block_backward(mode.from_tensor(x), gradient, packed, turned, *args[1:])
    assert [f.shape for f in fake] == [o.shape for o in ours]
    image, weight = torch.randn(1, 3, 9, 10), torch.randn(16, 3, 3, 3)
    for dtype in (torch.float32, torch.bfloat16)[: 1 + (why_not_in(torch.bfloat16) is None)]:
        torch.library.opcheck(ops.pack_linear.default, (weight, dtype, 1), test_utils=which)
        panels = ops.pack_linear(weight, dtype, 1)
        args = panels, None, None, None, None, [3, 3]
        torch.library.opcheck(ops.embed.default, (image, *args), test_utils=which)
        grad, turned = torch.randn(1, 3, 4, 16), ops.pack_linear(weight, dtype, 1, True)
        torch.library.opcheck(ops.embed_backward.default, (image, grad, panels, turned, *args[1:]), test_utils=which)
        torch.library.opcheck(ops.embed_backward.default, (image, grad, panels, None, *args[1:]), test_utils=which)
        weight = torch.randn(64, 128)
        args = ops.pack_linear(weight, dtype, 1), None, None, 1e-5, True
        torch.library.opcheck(ops.merge.default, (x, *args), test_utils=which)
        grad, turned = torch.randn(1, 5, 5, 64), ops.pack_linear(weight, dtype, 1, True)
        torch.library.opcheck(ops.merge_backward.default, (x, grad, args[0], turned, *args[1:]), test_utils=which)
        weight = torch.randn(16, 3, 3, 3)
    torch.library.opcheck(ops.output_norm.default, (x, None, None, 1e-5), test_utils=which)
    grad = torch.randn(1, 32, 9, 10)
    torch.library.opcheck(ops.output_norm_backward.default, (x, grad, None, None, 1e-5), test_utils=which)
