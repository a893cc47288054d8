"""The Triton kernels against the literal algorithm, by Triton's interpreter or on a GPU, if present."""

import pytest
import torch
from helpers.versions import needs_interpreter

from swin_backbone.kernels.triton import operators, tiles
from swin_backbone.kernels.triton.by_torch import attend_by_torch, attend_by_torch_backward
from swin_backbone.kernels.triton.operators import attend_in_windows, attend_in_windows_backward
from swin_backbone.kernels.triton.tiles import Tiles

pytest.importorskip('triton', reason='triton is not installed')
pytestmark = needs_interpreter

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
# Rounding errors, relative to the largest value of the result.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
HALF = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def nothing_falls_back(monkeypatch):
    monkeypatch.setattr(operators, 'launch_or_fall_back', lambda launch, fallback, tiles: launch(tiles))


def make_case(batch, height, width, window_size, shifted, mask_padding, heads, head_dim, dtype=torch.float32):
    """Return q, k and v of all tokens; q, k and v of padding; the bias; and the settings of the operator."""
    T, N = batch * height * width, window_size[0] * window_size[1]
    qkv_T3C = torch.randn(T, 3 * heads * head_dim, device=DEVICE).to(dtype)
    padding_3C = torch.randn(3 * heads * head_dim, device=DEVICE).to(dtype)
    bias_hNN = torch.randn(heads, N, N, device=DEVICE).to(dtype)
    shift = [window_size[0] // 2, window_size[1] // 2] if shifted else [0, 0]
    return qkv_T3C, padding_3C, bias_hNN, (batch, height, width, list(window_size), shift, mask_padding, head_dim**-0.5)


def assert_equal_with_gradients(qkv_T3C, padding_3C, bias_hNN, settings, tolerance):
    inputs = [x.requires_grad_() for x in (qkv_T3C, padding_3C, bias_hNN)]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    outputs = attend_in_windows(*inputs, *settings)[0], attend_by_torch(*exact, *settings)[0]
    weight = torch.randn_like(outputs[0])
    results = [[x, *torch.autograd.grad(x, i, weight.to(x.dtype))] for x, i in zip(outputs, (inputs, exact))]
    names = 'output', 'gradient of qkv', 'gradient of padding', 'gradient of the bias'
    for name, fast, literal in zip(names, *results):
        assert fast.dtype == qkv_T3C.dtype, name
        error = (fast.double() - literal).abs().max() / (literal.abs().max() or 1)  # 0 without padding
        assert error < tolerance, f'{name} is off by {error:.1e}'


# batch, height, width, window size, heads, channels of a head
MAPS = [
    (1, 14, 7, (7, 7), 2, 32),  # whole windows
    (2, 9, 9, (7, 7), 1, 16),  # padding beyond half a window: padding reaches into the second-last window
    (1, 13, 14, (7, 7), 1, 24),  # padding of less than half a window
    (2, 9, 5, (4, 6), 2, 40),  # rectangular
    (1, 7, 4, (4, 4), 1, 16),  # padding below alone
    (1, 4, 7, (4, 4), 1, 16),  # padding at the right alone
    (1, 3, 2, (7, 7), 2, 16),  # a map smaller than the window
    (1, 5, 4, (1, 3), 2, 16),  # hardly a window
    (1, 13, 8, (8, 8), 1, 64),  # of a tile's size
    (1, 20, 7, (12, 12), 1, 32),  # several tiles
    (1, 16, 17, (16, 16), 1, 24),
    (1, 9, 20, (6, 16), 1, 16),
]


@pytest.mark.parametrize(
    ('map', 'shifted', 'mask_padding'),
    [  # in every run one of four settings for each map, in turn
        pytest.param(MAPS[i], *setting, marks=() if i % 4 == j else pytest.mark.slow)
        for i in range(len(MAPS))
        for j, setting in enumerate([(True, True), (True, False), (False, True), (False, False)])
    ],
)
def test_outputs_and_gradients_equal_torchs(map, shifted, mask_padding):
    batch, height, width, window_size, heads, head_dim = map
    case = make_case(batch, height, width, window_size, shifted, mask_padding, heads, head_dim)
    assert_equal_with_gradients(*case, TOLERANCE[torch.float32])


@pytest.mark.parametrize('mask_padding', [False, True])
def test_gradients_by_torch_equal_autograds(mask_padding):
    *inputs, settings = make_case(2, 9, 8, (4, 6), True, mask_padding, 2, 16, torch.float64)
    out_TC, _ = attend_by_torch(*[x.requires_grad_() for x in inputs], *settings)
    grad_TC = torch.randn_like(out_TC)
    expected = torch.autograd.grad(out_TC, inputs, grad_TC)
    torch.testing.assert_close(attend_by_torch_backward(grad_TC, *inputs, *settings, True), expected)


@pytest.mark.parametrize(
    ('window_size', 'head_dim', 'dtype'),
    [
        *((size, head_dim, dtype) for size, head_dim in (((7, 7), 32), ((4, 6), 24)) for dtype in HALF),
        ((12, 12), 16, torch.bfloat16),
    ],
)
def test_half_precision_sums_in_float32(window_size, head_dim, dtype):
    case = make_case(1, 13, 14, window_size, True, False, 1, head_dim, dtype)
    assert_equal_with_gradients(*case, TOLERANCE[dtype])


def test_logits_beyond_half_precision_and_far_apart():
    qkv_T3C, padding_3C, bias_hNN, settings = make_case(1, 8, 8, (4, 4), True, False, 2, 16, torch.float16)
    qkv_T3C[:, :64] *= 60  # q k^T reaches beyond 65504
    out_TC, lse_LhN = attend_in_windows(qkv_T3C, padding_3C, bias_hNN, *settings)
    literal, _ = attend_by_torch(qkv_T3C.double(), padding_3C.double(), bias_hNN.double(), *settings)
    assert lse_LhN.isfinite().all()
    assert (out_TC.double() - literal).abs().max() < 2e-3 * literal.abs().max()


def test_offsets_beyond_int32(monkeypatch):
    monkeypatch.setattr(tiles, 'INT32_OFFSETS', 0)
    assert_equal_with_gradients(*make_case(2, 9, 5, (4, 6), True, True, 2, 16), TOLERANCE[torch.float32])
    assert_equal_with_gradients(*make_case(1, 9, 12, (9, 9), True, False, 1, 16), TOLERANCE[torch.float32])


def test_rows_need_not_lie_one_behind_the_other():
    qkv_T3C, padding_3C, bias_hNN, settings = make_case(1, 9, 8, (4, 4), True, False, 1, 16)
    spread_3C = torch.stack([padding_3C, padding_3C + 1], 1)[:, 0]
    wide = torch.cat([qkv_T3C, torch.full_like(qkv_T3C, 7.0)], dim=1)[:, : qkv_T3C.shape[1]].requires_grad_()
    turned = qkv_T3C.t().contiguous().t().requires_grad_()
    results = []
    for qkv, padding in ((qkv_T3C.requires_grad_(), padding_3C), (wide, padding_3C), (turned, spread_3C)):
        out_TC, _ = attend_in_windows(qkv, padding, bias_hNN.transpose(1, 2), *settings)
        (grad,) = torch.autograd.grad(out_TC.sum(), qkv)  # the gradient of a sum is expanded
        results.append((out_TC, grad))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=0)


def test_sums_of_several_programs_are_deterministic():
    case = make_case(1, 15, 16, (7, 7), True, False, 1, 16)
    cut = Tiles(case[0], case[2], *case[3][:-1])
    _, programs, _ = cut.choose_grid(cut.make_key_options())
    if DEVICE.type == 'cpu':
        assert 1 < programs < 3 * 3
    inputs = [tensor.requires_grad_() for tensor in case[:3]]
    gradients = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            out_TC, _ = attend_in_windows(*inputs, *case[3])
            gradients.append(torch.autograd.grad(out_TC.square().sum(), inputs))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(*pair) for pair in zip(*gradients))


def test_the_bias_stays_in_float32():
    """Read and summed in float32, for any dtype of query, key and value."""
    qkv_T3C, padding_3C, bias_hNN, settings = make_case(1, 8, 8, (4, 4), True, False, 2, 16, torch.bfloat16)
    bias_hNN = torch.randn(2, 16, 16, device=DEVICE, requires_grad=True)
    out_TC, _ = attend_in_windows(qkv_T3C, padding_3C, bias_hNN, *settings)
    (grad_hNN,) = torch.autograd.grad(out_TC.sum(), bias_hNN)
    assert grad_hNN.dtype == torch.float32
    assert not torch.equal(grad_hNN, grad_hNN.bfloat16().float())
    rounded, _ = attend_in_windows(qkv_T3C, padding_3C, bias_hNN.bfloat16(), *settings)
    assert not torch.equal(rounded, out_TC)


@pytest.mark.parametrize(
    ('window_size', 'size'), [((3, 4), (4, 5)), pytest.param((9, 8), (9, 8), marks=pytest.mark.slow)]
)
def test_opcheck(window_size, size):
    *inputs, settings = make_case(1, *size, window_size, True, True, 1, 16)
    torch.library.opcheck(attend_in_windows, (*(x.detach().requires_grad_() for x in inputs), *settings))
    out_TC, lse_LhN = attend_in_windows(*inputs, *settings)
    for needs_padding in (True, False):
        arguments = torch.ones_like(out_TC), *inputs, out_TC, lse_LhN, *settings, needs_padding
        torch.library.opcheck(attend_in_windows_backward, arguments)


def test_a_second_derivative_is_refused():
    qkv_T3C, padding_3C, bias_hNN, settings = make_case(1, 4, 4, (4, 4), False, False, 1, 16)
    out_TC, _ = attend_in_windows(qkv_T3C.requires_grad_(), padding_3C, bias_hNN, *settings)
    (grad,) = torch.autograd.grad(out_TC.square().sum(), qkv_T3C, create_graph=True)
    with pytest.raises(RuntimeError, match='attend_in_windows_backward'):
        torch.autograd.grad(grad.sum(), qkv_T3C)


@pytest.mark.parametrize(
    ('batch', 'width', 'row_stride', 'is_wide'),
    [
        (1, 7456500, 288, False),  # times 288 is about 2^31
        (1, 7456600, 288, True),
        (1, 1024, 2**21, True),
        (14608732, 1, 48, False),  # maps of a token, in windows of 49 places; times 147
        (14608733, 1, 48, True),
    ],
)
def test_where_offsets_need_int64(batch, width, row_stride, is_wide):
    qkv_13C = torch.empty(1, row_stride, device='meta')[:, :288]
    cut = Tiles(qkv_13C, torch.empty(3, 49, 49, device='meta'), batch, 1, width, [7, 7], [0, 0], False)
    assert cut.is_wide == is_wide
