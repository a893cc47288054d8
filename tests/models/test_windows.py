"""Windows of maps, against the reference's pad, roll and partition.

tests/models/layers/test_blocks.py compares masks, position biases and the windows of Swin-MLP with the reference.
"""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from helpers import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from swin_backbone import modes
from swin_backbone.models.windows import Windows, find_tokens
from swin_backbone.modes import CACHED_TABLES, cached_table

sides = st.integers(1, 19)


@st.composite
def cases(draw):
    """Draw windows and a map."""
    window = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    shift = (window[0] // 2, window[1] // 2) if draw(st.booleans()) else (0, 0)
    windows = Windows(draw(sides), draw(sides), window, shift)
    return windows, torch.randn(draw(st.integers(1, 3)), windows.height, windows.width, 2)


@settings(max_examples=150)
@given(cases())
def test_partition_pads_and_rolls_and_reverse_undoes_it(case):
    windows, x_BHWC = case
    (Wh, Ww), (up, left) = windows.window_size, windows.shift
    padded = F.pad(x_BHWC, (0, 0, 0, -windows.width % Ww, 0, -windows.height % Wh)).roll((-up, -left), (1, 2))
    x_LNC = windows.partition(x_BHWC)
    assert torch.equal(x_LNC, reference.window_partition(padded, windows.window_size))
    assert torch.equal(windows.reverse(x_LNC, len(x_BHWC)), x_BHWC)
    of_mlp = windows._replace(shift=(0, 0), pad_before=windows.shift)
    assert torch.equal(of_mlp.reverse(of_mlp.partition(x_BHWC), len(x_BHWC)), x_BHWC)


@pytest.mark.parametrize('shift', [dict(shift=(2, 1)), dict(pad_before=(2, 1))])
def test_gradients_of_partition_and_reverse(shift):
    windows, x_BHWC = Windows(5, 9, (4, 3), **shift), torch.randn(2, 5, 9, 3, dtype=torch.double)
    torch.autograd.gradcheck(windows.partition, x_BHWC.requires_grad_())
    x_LNC = windows.partition(x_BHWC).detach().requires_grad_()
    torch.autograd.gradcheck(lambda x: windows.reverse(x, 2), x_LNC)
    torch.autograd.gradgradcheck(lambda x: windows.partition(x) ** 2, x_BHWC)


@pytest.fixture
def built():
    """Return a cached table of `size` numbers, and the sizes that were built."""
    sizes = []

    @cached_table
    def build(size):
        sizes.append(size)
        return torch.arange(size)

    return build, sizes


def test_a_bounded_cache_serves_forty_sizes_of_pictures(built, monkeypatch):
    build, sizes = built
    tokens = [
        (H // 2**stage) * (W // 2**stage) for H in range(150, 206, 8) for W in range(296, 344, 8) for stage in range(4)
    ]
    for _ in range(2):
        for one in tokens[:160]:
            build(one), build(one + 1)  # without and with a shift
    assert len(sizes) == len(set(sizes))
    monkeypatch.setattr(modes, 'CACHED_BYTES', 0)
    sizes.clear()
    for size in range(CACHED_TABLES + 10):
        assert build(size) is build(size)
    assert len(sizes) == CACHED_TABLES + 10
    build(CACHED_TABLES + 9)
    build(0)
    assert len(sizes) == CACHED_TABLES + 11


def test_what_a_cuda_graph_captured_stays(built, monkeypatch):
    build, _ = built
    monkeypatch.setattr(modes, 'CACHED_BYTES', 0)
    read = weakref.ref(build(3))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, 'is_initialized', lambda: True)
        patch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: True)
        build(3)
        in_the_graph = build(4)  # has no values before a replay
    assert build(4) is not in_the_graph
    for size in range(5, CACHED_TABLES + 10):
        build(size)
    gc.collect()
    assert build(3) is read() is not None


def test_tables_of_inference_mode_serve_a_later_backward():
    windows, x_BHWC = Windows(9, 11, (7, 7)), torch.randn(1, 9, 11, 2, requires_grad=True)
    with torch.inference_mode():
        windows.partition(x_BHWC)
    windows.partition(x_BHWC).sum().backward()
    assert torch.equal(x_BHWC.grad, torch.ones_like(x_BHWC))


def test_tables_of_a_transform_end_with_the_transform():
    """A table that is made under `torch.func.grad` is wrapped, and the wrapper has no meaning outside."""

    def sum_of(x):
        return x[find_tokens(Windows(5, 9, (3, 4)), x.device) % 45].sum()

    torch.func.grad(sum_of)(torch.randn(45))
    table = find_tokens(Windows(5, 9, (3, 4)), torch.device('cpu'))
    assert not torch._C._functorch.is_functorch_wrapped_tensor(table)
    assert len(set(table.tolist())) == 46
