"""A block by the compiled operator is the reference's, for any map and window, in float32 and in bfloat16."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.backends.native_blocks import by_operator, by_reference, cases, random_weights, rms
from hypothesis import assume, given, settings


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


def test_large_logits_neither_overflow_nor_lose_the_largest(dtype):
    x, weights = torch.randn(2, 14, 14, 32), random_weights(32, 1, (7, 7), v2=False)
    weights['attn.w_msa.qkv.weight'] *= 10  # softmax without a maximum would overflow
    case = x, weights, 1, (7, 7), (3, 3), False
    difference, truth = by_operator(*case, dtype) - by_reference(*case), by_reference(*case)
    if dtype is torch.float32:
        assert difference.abs().max() < 1e-3
    else:
        with torch.autocast('cpu', torch.bfloat16):
            assert rms(difference) < 1.5 * rms(by_reference(*case) - truth)


def test_nan_stays_in_its_window(dtype):
    x, weights = torch.randn(1, 8, 8, 32), random_weights(32, 1, (4, 4), v2=False)
    x[0, 0, 0] = torch.nan
    nan_HW = by_operator(x, weights, 1, (4, 4), (0, 0), False, dtype)[0].isnan().any(-1)
    assert nan_HW[:4, :4].all()
    assert nan_HW.sum() == 16


def test_bits_are_equal_for_all_numbers_of_threads():
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
