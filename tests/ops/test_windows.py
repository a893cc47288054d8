"""The index arithmetic of windows, against the reference's pad, roll and partition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone.ops import reference
from swin_backbone.ops.windows import CACHED_GRIDS, WindowGrid, fit_window, window_grid

CPU = torch.device('cpu')
geometries = st.tuples(
    st.integers(1, 3),  # batch
    st.integers(1, 19),  # height
    st.integers(1, 19),  # width
    st.tuples(st.integers(1, 7), st.integers(1, 7)),  # window
    st.booleans(),  # shifted
    st.booleans(),  # mask_padding
)


def make_grid(geometry):
    batch, height, width, window, shifted, mask_padding = geometry
    shift = (window[0] // 2, window[1] // 2) if shifted else (0, 0)
    return WindowGrid(batch, height, width, window, shift, mask_padding, CPU), shift


@settings(deadline=None, max_examples=150)
@given(geometries)
def test_windows_hold_what_pad_roll_and_partition_put_there(geometry):
    grid, shift = make_grid(geometry)
    batch, height, width, window, _, _ = geometry
    numbers_BHW1 = torch.arange(batch * height * width).view(batch, height, width, 1)
    padding = (0, 0, 0, -width % window[1], 0, -height % window[0])
    padded = torch.nn.functional.pad(numbers_BHW1, padding, value=-1)
    expected_LN = reference.window_partition(padded.roll((-shift[0], -shift[1]), (1, 2)), window)[..., 0]
    assert sorted(grid.token_at_LN.tolist()) == sorted(expected_LN.tolist())


@settings(deadline=None, max_examples=150)
@given(geometries)
def test_kinds_are_contiguous_and_their_masks_are_the_nine_regions(geometry):
    grid, shift = make_grid(geometry)
    _, height, width, window, _, mask_padding = geometry
    padded = (-(-height // window[0]) * window[0], -(-width // window[1]) * window[1])
    regions_HW = reference._regions((height, width), padded, window, shift, mask_padding)
    regions_LN = reference.window_partition(regions_HW[None, :, :, None], window)[..., 0]
    numbers_HW = torch.nn.functional.pad(
        torch.arange(height * width).view(height, width), (0, padded[1] - width, 0, padded[0] - height), value=-1
    )
    numbers_LN = reference.window_partition(numbers_HW.roll((-shift[0], -shift[1]), (0, 1))[None, :, :, None], window)[
        ..., 0
    ]
    mask_of_tokens = {
        tuple(numbers): regions[:, None] == regions for numbers, regions in zip(numbers_LN.tolist(), regions_LN)
    }
    assert len(grid.runs) <= 9 if mask_padding else len(grid.runs) <= 4
    assert sum(run.count for run in grid.runs) == grid.num_windows
    begin = 0
    for run in grid.runs:
        for window_tokens in grid.token_at_LN[begin : begin + run.count]:
            tokens = torch.where(window_tokens < 0, -1, window_tokens % (height * width))
            expected_NN = mask_of_tokens[tuple(tokens.tolist())]
            mask_NN = torch.ones_like(expected_NN) if run.mask_NN is None else run.mask_NN
            holds_token = tokens >= 0  # what padding itself attends to reaches no output
            assert torch.equal(mask_NN[holds_token], expected_NN[holds_token])
        begin += run.count


@settings(deadline=None, max_examples=100)
@given(geometries, st.integers(1, 9))
def test_each_token_is_in_exactly_one_strip_and_comes_back(geometry, windows_per_strip):
    grid, _ = make_grid(geometry)
    x_TC = torch.randn(grid.num_tokens, 2)
    seen = []
    for strip in [grid.whole(), *grid.strips(windows_per_strip)]:
        part_TC = x_TC if strip.tokens_T is None else x_TC[strip.tokens_T]
        windows_LNC = strip.to_windows(strip.with_padding_token(part_TC))
        assert sum(run.count for run in strip.runs) == len(windows_LNC)
        assert torch.equal(strip.to_tokens(windows_LNC), part_TC)
        if strip.tokens_T is not None:
            assert len(windows_LNC) <= windows_per_strip
            seen.append(strip.tokens_T)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(grid.num_tokens))


def test_padding_places_hold_the_padding_token_and_the_rearrangement_is_its_own_transpose():
    strip = make_grid((2, 5, 9, (4, 3), True, False))[0].whole()
    x_TC = torch.randn(91, 3, dtype=torch.double, requires_grad=True)  # 90 tokens and what padding holds
    windows_LNC = strip.to_windows(x_TC)
    assert (windows_LNC.flatten(0, 1)[strip.padding_P] == x_TC[-1]).all()
    assert len(strip.padding_P) == windows_LNC.shape[:2].numel() - 90
    torch.autograd.gradcheck(strip.to_windows, x_TC)
    torch.autograd.gradcheck(strip.to_tokens, windows_LNC.detach().requires_grad_())
    torch.autograd.gradgradcheck(lambda x: strip.to_windows(x) ** 2, x_TC)
    assert (strip.with_padding_token(x_TC)[-1] == 0).all()


def test_a_size_seen_before_is_not_rebuilt_and_the_cache_is_bounded():
    window_grid.cache_clear()
    first = window_grid(1, 14, 14, (7, 7), (3, 3), False, CPU)
    again = window_grid(1, 14, 14, (7, 7), (3, 3), False, CPU)
    assert again is first
    assert again.whole() is first.whole()
    assert again.strips(2) is first.strips(2)
    for height in range(1, CACHED_GRIDS + 10):
        window_grid(1, height, 5, (7, 7), (3, 3), False, CPU)
    assert window_grid.cache_info().currsize == CACHED_GRIDS


def test_a_grid_first_built_in_inference_mode_serves_a_later_backward():
    window_grid.cache_clear()
    with torch.inference_mode():
        strip = window_grid(1, 9, 9, (7, 7), (0, 0), False, CPU).whole()
    assert not strip.place_of_T.is_inference()
    x_TC = torch.randn(81, 2, requires_grad=True)
    assert window_grid(1, 9, 9, (7, 7), (0, 0), False, CPU).whole() is strip
    strip.to_windows(strip.with_padding_token(x_TC)).sum().backward()
    assert torch.equal(x_TC.grad, torch.ones_like(x_TC))


@pytest.mark.parametrize(
    ('size', 'window', 'expected'),
    [
        ((14, 14), (7, 7), ((7, 7), (3, 3))),
        ((7, 7), (7, 7), ((7, 7), (0, 0))),
        ((5, 9), (7, 7), ((5, 5), (0, 0))),
        ((6, 6), (4, 8), ((4, 6), (0, 0))),
    ],
)
def test_shrink_takes_the_smaller_side_and_no_shift(size, window, expected):
    assert fit_window(*size, window, (3, 3), 'shrink') == expected
    assert fit_window(*size, window, (3, 3), 'pad') == (window, (3, 3))
