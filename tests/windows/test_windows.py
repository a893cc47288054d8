"""The index arithmetic of windows, against the reference's pad, roll and partition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone.backends import reference
from swin_backbone.backends.eager import TableWindows
from swin_backbone.backends.functions.position import CACHED_TABLES, relative_position_bias
from swin_backbone.models.layers.swin_block import WindowCut
from swin_backbone.windows.grid import Geometry, WindowGrid, fit_window
from swin_backbone.windows.position import relative_position_index

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
    return WindowGrid(Geometry(batch, height, width, window, shift, mask_padding, CPU)), shift


def cut(geometry, window_tokens=None):
    batch, height, width, window, shifted, mask_padding = geometry
    shift = (window[0] // 2, window[1] // 2) if shifted else (0, 0)
    return TableWindows.cut(None, Geometry(batch, height, width, window, shift, mask_padding, CPU), window_tokens)


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
    assert len(grid.groups) <= 9 if mask_padding else len(grid.groups) <= 4
    assert sum(run.length for run in grid.groups) == grid.num_windows
    begin = 0
    for run in grid.groups:
        for window_tokens in grid.token_at_LN[begin : begin + run.length]:
            tokens = torch.where(window_tokens < 0, -1, window_tokens % (height * width))
            expected_NN = mask_of_tokens[tuple(tokens.tolist())]
            mask_NN = torch.ones_like(expected_NN) if run.mask_NN is None else run.mask_NN
            holds_token = tokens >= 0  # what padding itself attends to reaches no output
            assert torch.equal(mask_NN[holds_token], expected_NN[holds_token])
        begin += run.length


@settings(deadline=None, max_examples=100)
@given(geometries, st.integers(1, 9))
def test_each_token_is_in_exactly_one_piece_and_comes_back(geometry, windows_per_piece):
    batch, height, width, window, _, _ = geometry
    N = window[0] * window[1]
    x_BHWC = torch.randn(batch, height, width, 2)
    for window_tokens in (None, windows_per_piece * N):
        out_BHWC, seen = None, []
        for piece in cut(geometry, window_tokens):
            part_TC = piece.read(x_BHWC)
            windows_LNC = piece.to_windows(piece.pad(part_TC))
            assert sum(run.length for run in piece.groups) == len(windows_LNC)
            assert torch.equal(piece.to_tokens(windows_LNC), part_TC)
            out_BHWC = piece.write(part_TC, x_BHWC, out_BHWC)
            if window_tokens:
                assert len(windows_LNC) <= windows_per_piece
                seen.append(piece.tokens_T)
        assert torch.equal(out_BHWC, x_BHWC)
        if window_tokens:
            assert torch.equal(torch.cat(seen).sort().values, torch.arange(batch * height * width))


def test_padding_places_hold_the_padding_token_and_the_rearrangement_is_its_own_transpose():
    (piece,) = cut((2, 5, 9, (4, 3), True, False))
    x_TC = torch.randn(91, 3, dtype=torch.double, requires_grad=True)  # 90 tokens and what padding holds
    windows_LNC = piece.to_windows(x_TC)
    assert (windows_LNC.flatten(0, 1)[piece.padding_P] == x_TC[-1]).all()
    assert len(piece.padding_P) == windows_LNC.shape[:2].numel() - 90
    torch.autograd.gradcheck(piece.to_windows, x_TC)
    torch.autograd.gradcheck(piece.to_tokens, windows_LNC.detach().requires_grad_())
    torch.autograd.gradgradcheck(lambda x: piece.to_windows(x) ** 2, x_TC)
    assert (piece.pad(x_TC)[-1] == 0).all()


def test_a_size_seen_before_is_not_rebuilt_and_the_cache_is_bounded():
    TableWindows.cut.cache_clear()
    assert cut((1, 14, 14, (7, 7), True, False)) is cut((1, 14, 14, (7, 7), True, False))
    assert cut((1, 14, 14, (7, 7), True, False), 98) is not cut((1, 14, 14, (7, 7), True, False))
    for height in range(1, CACHED_TABLES + 10):
        cut((1, height, 5, (7, 7), True, False))
    assert TableWindows.cut.cache_info().currsize == CACHED_TABLES


def test_windows_first_built_in_inference_mode_serve_a_later_backward():
    TableWindows.cut.cache_clear()
    with torch.inference_mode():
        (piece,) = cut((1, 9, 9, (7, 7), False, False))
    assert not piece.place_of_T.is_inference()
    x_TC = torch.randn(81, 2, requires_grad=True)
    assert cut((1, 9, 9, (7, 7), False, False))[0] is piece
    piece.to_windows(piece.pad(x_TC)).sum().backward()
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
    assert fit_window(*size, window, (3, 3)) == expected
    assert WindowCut(window, (3, 3), 'shrink', False, False).of(torch.empty(2, *size, 1))[3:5] == expected
    fixed = WindowCut(window, (3, 3), 'shrink', False, fixed_window=True).of(torch.empty(2, *size, 1))
    assert fixed[3:5] == (window, expected[1])
    assert WindowCut(window, (3, 3), 'pad', False, False).of(torch.empty(2, *size, 1))[3:5] == (window, (3, 3))


ATOMIC = 'index_add', 'index_put', 'scatter', 'embedding', 'index_select_backward'


class SeesAtomics(TorchDispatchMode):
    """What adds to places that an index gives: on CUDA in any order."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(name in str(func) for name in ATOMIC):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(('window', 'table'), [((7, 7), (7, 7)), ((3, 5), (4, 5)), ((1, 1), (7, 7)), ((2, 3), (2, 3))])
def test_the_bias_and_its_gradient_are_those_of_a_lookup_without_atomic_adds(window, table):
    table_Rh = torch.randn((2 * table[0] - 1) * (2 * table[1] - 1), 3, dtype=torch.float64, requires_grad=True)
    N = window[0] * window[1]
    literal = table_Rh[relative_position_index(window, table, torch.device('cpu'))].view(N, N, 3).permute(2, 0, 1)
    bias_hNN = relative_position_bias(table_Rh, window, table)
    assert torch.equal(bias_hNN, literal)
    assert torch.equal(relative_position_bias(table_Rh.detach(), window, table), literal)
    weight = torch.randn_like(bias_hNN)
    (expected,) = torch.autograd.grad(literal, table_Rh, weight)
    with SeesAtomics() as atomics:
        (gradient,) = torch.autograd.grad(bias_hNN, table_Rh, weight)
    torch.testing.assert_close(gradient, expected)
    assert not atomics.seen
