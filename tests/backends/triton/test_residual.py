"""Residual sums and norms as one kernel against the literal sums, in Triton's interpreter or on a GPU."""

import pytest
import torch
from helpers.backends import paper
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone import SwinBackbone
from swin_backbone.backends.functions import block
from swin_backbone.backends.triton import backend as fused
from swin_backbone.backends.triton import trial
from swin_backbone.backends.triton.residual import add_norm, add_norm_backward

pytest.importorskip('triton', reason='triton is not installed')

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
KINDS = ['norm', 'branch', 'branch and norm', 'factors', 'factors and norm']


def make_case(kind, tokens=2 * 37, channels=24, dtype=torch.float32, of_sum=torch.float32):
    x_TC, branch_TC = (torch.randn(tokens, channels, device=DEVICE) * 2 + 1 for _ in range(2))
    weight_C, bias_C = (torch.randn(channels, device=DEVICE, requires_grad=True) for _ in range(2))
    has_norm = 'norm' in kind
    return (
        x_TC.to(of_sum).requires_grad_(),
        None if kind == 'norm' else branch_TC.to(dtype).requires_grad_(),
        torch.tensor([0.0, 1.25], device=DEVICE) if 'factors' in kind else None,
        weight_C if has_norm else None,
        bias_C if has_norm else None,
        1e-5,
    )


def exact(case):
    return [x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in case]


def results_and_gradients(outputs, inputs, weights):
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    loss = sum((x.double() * weight).sum() for x, weight in zip(outputs, weights))
    return [*outputs, *torch.autograd.grad(loss, wanted)]


def assert_equal_with_gradients(case, dtype, tolerance):
    summed, normed, _, _ = add_norm(*case, dtype)
    twin = exact(case)
    literal_sum, literal_norm = paper.add_norm(*twin)
    pairs = [(summed, literal_sum)] * (case[1] is not None) + [(normed, literal_norm)] * (case[3] is not None)
    weights = [torch.randn(x.shape, device=DEVICE, dtype=torch.float64) for x, _ in pairs]
    results = results_and_gradients([x for x, _ in pairs], case, weights)
    expected = results_and_gradients([x for _, x in pairs], twin, weights)
    for result, literal in zip(results, expected):
        error = (result.double() - literal).abs().max() / literal.abs().max()
        assert error < tolerance, f'off by {error:.1e}'


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('channels', [24, 96])
def test_outputs_and_gradients_equal_the_twins(kind, channels):
    assert_equal_with_gradients(make_case(kind, channels=channels), torch.float32, TOLERANCE[torch.float32])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('kind', ['norm', 'factors and norm'])
def test_a_branch_in_half_precision_beside_a_sum_in_float32(kind, dtype):
    case = make_case(kind, dtype=dtype)
    summed, normed, mean, rstd = add_norm(*case, dtype)
    assert (summed.dtype, normed.dtype) == (torch.float32, dtype)
    assert mean.dtype == rstd.dtype == torch.float32
    assert_equal_with_gradients(case, dtype, TOLERANCE[dtype])


def test_a_sum_in_half_precision_is_normalised_as_it_is_kept():
    case = make_case('branch and norm', dtype=torch.bfloat16, of_sum=torch.bfloat16)
    summed, normed, _, _ = add_norm(*case, torch.float32)
    _, expected = paper.add_norm(summed.double(), None, None, *case[3:])
    torch.testing.assert_close(normed.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_dropped_branch_adds_nothing_and_has_no_gradient():
    case = make_case('factors and norm')
    summed, normed, _, _ = add_norm(*case, torch.float32)
    assert torch.equal(summed[:37], case[0][:37])
    (gradient,) = torch.autograd.grad(normed.square().sum(), case[1])
    assert not gradient[:37].any()
    assert gradient[37:].all()


def test_sums_over_programs_are_deterministic():
    case = make_case('factors and norm', tokens=2 * 300, channels=40)
    wanted = [x for x in case if isinstance(x, torch.Tensor) and x.requires_grad]
    first, second = (torch.autograd.grad(add_norm(*case, torch.float32)[1].square().sum(), wanted) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize('kind', ['norm', 'factors', 'factors and norm'])
def test_opcheck(kind):
    case = make_case(kind, tokens=6, channels=5, dtype=torch.bfloat16)
    torch.library.opcheck(add_norm, (*case, torch.bfloat16))
    with torch.no_grad():
        summed, normed, mean, rstd = add_norm(*case, torch.bfloat16)
    of_norm = (case[0] if case[1] is None else summed).detach() if case[3] is not None else None
    weight = None if case[3] is None else case[3].detach()
    branch_dtype = None if case[1] is None else torch.bfloat16
    arguments = torch.ones_like(summed), torch.ones_like(normed), of_norm, case[2], weight, mean, rstd, branch_dtype
    torch.library.opcheck(add_norm_backward, arguments)


needs_kernel = pytest.mark.skipif(
    trial._try(DEVICE, torch.float32, (3, 3), 16, False) is not None, reason='the Triton kernel does not run here'
)


@needs_kernel
@pytest.mark.parametrize('autocast', [False, True])
def test_a_backbone_computes_the_same_with_it(monkeypatch, autocast):
    arguments = dict(embed_dims=32, depths=(2,), num_heads=(2,), out_indices=(0,), window_size=3, drop_path_rate=0.3)
    model = SwinBackbone(backend='triton', **arguments).to(DEVICE).train()
    x, calls = torch.randn(2, 3, 12, 16, device=DEVICE), []
    attention = block.attention
    monkeypatch.setattr(block, 'attention', lambda x_TC, *others: calls.append(x_TC.dtype) or attention(x_TC, *others))
    results = []
    for fuse in ('', 'norm'):
        monkeypatch.setenv('SWIN_BACKBONE_FUSE', fuse)
        torch.manual_seed(1)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
            (y,) = model(x)
        results.append([y, *torch.autograd.grad(y.float().square().mean(), list(model.parameters()))])
    assert len(calls) == 4
    assert calls[2:] == [torch.bfloat16 if autocast else torch.float32] * 2, 'the norm comes in the dtype of qkv'
    tolerance = 2e-2 if autocast else 1e-5
    largest = max(float(x.detach().abs().max()) for x in results[0])
    for result, expected in zip(*results):
        assert (result - expected).abs().max() <= tolerance * largest


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func).removesuffix('.default'))
        return func(*args, **(kwargs or {}))


@needs_kernel
def test_a_block_neither_pads_nor_casts_what_it_normalises(monkeypatch):
    arguments = dict(embed_dims=32, depths=(1,), num_heads=(2,), out_indices=(0,), window_size=3, drop_path_rate=0.3)
    block = SwinBackbone(backend='triton', **arguments).to(DEVICE).train().stages[0].blocks[0]
    x_BHWC = torch.randn(2, 3, 4, 32, device=DEVICE)
    monkeypatch.setenv('SWIN_BACKBONE_FUSE', 'norm,weights')
    with torch.autocast(DEVICE.type, torch.bfloat16), Names() as names:
        block(x_BHWC)
    assert names.seen.count('swin_backbone.add_norm') == 3
    for name in ('constant_pad_nd', 'native_layer_norm', '_to_copy', 'add', 'mul'):
        assert not [seen for seen in names.seen if seen.split('.')[1] == name], name


def test_a_switch_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv('SWIN_BACKBONE_FUSE', 'norm,everything')
    with pytest.raises(ValueError, match=r'SWIN_BACKBONE_FUSE takes norm.*, got everything'):
        fused.fusions()
