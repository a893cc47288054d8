"""Windows of maps, against the reference's pad, roll and partition."""

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone.compat import CACHED_TABLES, cached_table
from swin_backbone.windows.grid import Windows, find_indices, fit_window
from swin_backbone.windows.position import relative_position_bias

CPU = torch.device('cpu')
sides = st.integers(1, 19)


@st.composite
def cases(draw, rolls=True):
    """Draw windows and a map size."""
    window = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    shift = (window[0] // 2, window[1] // 2) if draw(st.booleans()) else (0, 0)
    windows = Windows(draw(sides), draw(sides), window, shift, draw(st.booleans()), rolls)
    return windows, torch.randn(draw(st.integers(1, 3)), windows.height, windows.width, 2)


def padded_and_rolled(windows, x_BHWC):
    (Wh, Ww), (up, left) = windows.window_size, windows.shift
    padded = F.pad(x_BHWC, (0, 0, 0, -windows.width % Ww, 0, -windows.height % Wh))
    return padded.roll((-up, -left), (1, 2))


@settings(max_examples=150)
@given(cases())
def test_partition_pads_and_rolls_and_reverse_undoes_it(case):
    windows, x_BHWC = case
    x_LNC = windows.partition(x_BHWC)
    expected_LNC = reference.window_partition(padded_and_rolled(windows, x_BHWC), windows.window_size)
    assert torch.equal(x_LNC, expected_LNC)
    assert torch.equal(windows.reverse(x_LNC, len(x_BHWC)), x_BHWC)


@settings(max_examples=100)
@given(cases(rolls=False))
def test_swin_mlps_windows_are_padded_before_the_map(case):
    windows, x_BHWC = case
    (Wh, Ww), (H, W) = windows.window_size, x_BHWC.shape[1:3]
    above, left = (side - by if by else 0 for side, by in zip(windows.window_size, windows.shift))
    padded = F.pad(x_BHWC, (0, 0, left, -(left + W) % Ww, above, -(above + H) % Wh))
    x_LNC = windows.partition(x_BHWC)
    assert torch.equal(x_LNC, reference.window_partition(padded, windows.window_size))
    assert torch.equal(windows.reverse(x_LNC, len(x_BHWC)), x_BHWC)
    assert windows.mask(CPU) is None


@settings(max_examples=150)
@given(cases())
def test_masks_are_the_nine_regions(case):
    windows, x_BHWC = case
    padded = padded_and_rolled(windows, x_BHWC).shape[1:3]
    size = windows.height, windows.width
    regions_HW = reference._regions(size, padded, windows.window_size, windows.shift, windows.mask_padding)
    regions_LN = reference.window_partition(regions_HW[None, :, :, None], windows.window_size)[..., 0]
    expected_LNN = regions_LN[:, :, None] == regions_LN[:, None]
    mask_L1NN = windows.mask(CPU)
    mask_LNN = torch.ones_like(expected_LNN) if mask_L1NN is None else mask_L1NN[:, 0]
    holds_token_LN = find_indices(windows, CPU)[0].view(regions_LN.shape) < size[0] * size[1]
    # A padded query reaches no output.
    assert torch.equal(mask_LNN[holds_token_LN], expected_LNN[holds_token_LN])


@pytest.mark.parametrize('rolls', [True, False])
def test_gradients_of_partition_and_reverse(rolls):
    windows, x_BHWC = Windows(5, 9, (4, 3), (2, 1), rolls=rolls), torch.randn(2, 5, 9, 3, dtype=torch.double)
    torch.autograd.gradcheck(windows.partition, x_BHWC.requires_grad_())
    x_LNC = windows.partition(x_BHWC).detach().requires_grad_()
    torch.autograd.gradcheck(lambda x: windows.reverse(x, 2), x_LNC)
    torch.autograd.gradgradcheck(lambda x: windows.partition(x) ** 2, x_BHWC)


def test_sizes_are_cached_in_a_bounded_cache():
    built = []

    @cached_table
    def build(size):
        built.append(size)
        return torch.arange(size)

    assert build(3) is build(3)
    for size in range(CACHED_TABLES + 10):
        build(size)
    build(CACHED_TABLES + 9)
    assert len(built) == CACHED_TABLES + 10
    build(0)
    assert len(built) == CACHED_TABLES + 11


def test_tables_of_inference_mode_serve_a_later_backward():
    windows, x_BHWC = Windows(9, 11, (7, 7)), torch.randn(1, 9, 11, 2, requires_grad=True)
    with torch.inference_mode():
        windows.partition(x_BHWC)
    windows.partition(x_BHWC).sum().backward()
    assert torch.equal(x_BHWC.grad, torch.ones_like(x_BHWC))


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
    assert fit_window(*size, window, (3, 3)) == expected


@pytest.mark.parametrize(('window', 'table'), [((7, 7), (7, 7)), ((3, 5), (4, 5)), ((1, 1), (7, 7)), ((2, 3), (2, 3))])
def test_bias_is_a_lookup_of_relative_positions(window, table):
    table_Rh = torch.randn((2 * table[0] - 1) * (2 * table[1] - 1), 3, dtype=torch.float64, requires_grad=True)
    bias_hNN = relative_position_bias(table_Rh, window, table)
    (gradient,) = torch.autograd.grad(bias_hNN.sum(), table_Rh)
    pairs = torch.zeros(2 * table[0] - 1, 2 * table[1] - 1, 3, dtype=torch.float64)
    for (q, (y, x)), (k, (v, u)) in product(enumerate(np.ndindex(window)), enumerate(np.ndindex(window))):
        place = y - v + table[0] - 1, x - u + table[1] - 1
        assert torch.equal(bias_hNN[:, q, k], table_Rh.view(pairs.shape)[place])
        pairs[place] += 1
    assert torch.equal(gradient, pairs.flatten(0, 1))


@pytest.mark.parametrize('size', [(9, 13), (8, 12), (5, 4), (2, 1)])
def test_a_map_that_is_rolled_before_it_is_padded(size):
    windows = Windows(*size, (4, 4), (2, 1), pads_first=False)
    x_BHWC = torch.randn(2, *size, 8)
    padded = torch.nn.functional.pad(x_BHWC.roll((-2, -1), (1, 2)), (0, 0, 0, -size[1] % 4, 0, -size[0] % 4))
    y_LNC = windows.partition(x_BHWC)
    assert torch.equal(y_LNC, Windows(*padded.shape[1:3], (4, 4)).partition(padded))
    assert torch.equal(windows.reverse(y_LNC, 2), x_BHWC)
    assert torch.equal(windows.mask(x_BHWC.device), Windows(*size, (4, 4), (2, 1)).mask(x_BHWC.device))
