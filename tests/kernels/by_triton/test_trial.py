"""The comparison of kernels with the reference before use: the trial finds wrong kernels, without side effects."""

import warnings
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from helpers.versions import needs_interpreter
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone import SwinBackbone
from swin_backbone.kernels.triton import availability, operators, plans, trial
from swin_backbone.kernels.triton.tiles import Tiles, Variant
from swin_backbone.models.layers.attention import BaseAttention

OutOfResources = pytest.importorskip('triton.runtime', reason='triton is not installed').OutOfResources
pytestmark = needs_interpreter

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
FORWARD, BACKWARD = 'launch_forward', 'launch_backward'


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch):
    monkeypatch.setattr(availability, 'FAULTS', {})
    monkeypatch.setattr(availability, 'WARNED', set())


def find_fault(dtype=torch.float32, window_size=(3, 3), shift=(1, 1), mask_padding=False, is_wide=False):
    return availability.find_fault(Variant(DEVICE, dtype, 16, window_size, shift, mask_padding, is_wide, tf32=False))


@pytest.mark.parametrize(
    'settings',
    [
        *(dict(dtype=dtype) for dtype in availability.KERNEL_DTYPES),
        *(dict(shift=(0, 0)), dict(mask_padding=True), dict(is_wide=True)),
        *(dict(window_size=(2, 1)), dict(window_size=(1, 1))),
    ],
    ids=str,
)
def test_the_kernels_pass(settings):
    assert find_fault(**settings) is None


FAULTS = {
    'one value is NaN': (FORWARD, lambda out, lse: out[0, 0].fill_(torch.nan), 'output'),
    'a key': (BACKWARD, lambda qkv, padding, bias: qkv[7, 32:64].zero_(), 'gradient of query, key and value'),
    'padding': (BACKWARD, lambda qkv, padding, bias: padding[32:].mul_(2), 'gradient of padding'),
    'a head of the bias': (BACKWARD, lambda qkv, padding, bias: bias[1].zero_(), 'gradient of the bias'),
}


@pytest.fixture
def make_wrong(monkeypatch):
    """Return a function that changes the results of an operator by a fault."""

    def replace(fault):
        name, change, _ = FAULTS[fault]
        right = getattr(trial, name)

        def wrong(*arguments):
            results = right(*arguments)
            change(*results)
            return results

        monkeypatch.setattr(trial, name, wrong)

    return replace


@pytest.mark.parametrize('fault', FAULTS)
def test_a_wrong_kernel_is_not_used(make_wrong, fault):
    make_wrong(fault)
    reason = find_fault()
    assert FAULTS[fault][2] in reason
    assert 'is off by' in reason
    assert ('nan' in reason) == ('NaN' in fault)


def test_a_kernel_without_masks_is_caught_in_shifted_windows(monkeypatch):
    constants = Tiles.make_constants
    monkeypatch.setattr(Tiles, 'make_constants', lambda tiles: {**constants(tiles), 'MASKED': False})
    assert 'output is off by' in find_fault()


def test_a_backbone_that_names_it_refuses(make_wrong):
    make_wrong('one value is NaN')
    arguments = dict(embed_dims=32, depths=(2,), num_heads=(2,), out_indices=(0,), window_size=3)
    model = SwinBackbone(backend='triton', **arguments).to(DEVICE)
    x = torch.randn(1, 3, 36, 28, device=DEVICE)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'triton' .* the kernel differs from torch: .* is off by nan"):
            model(x)
    model.backend = 'auto'
    assert all(output.isfinite().all() for output in model(x))


@pytest.mark.parametrize('module', [trial, operators])
@pytest.mark.parametrize('name', [FORWARD, BACKWARD])
def test_after_a_failed_launch_torch_computes_with_one_warning(monkeypatch, module, name):
    def fail(*arguments):
        raise OutOfResources(196608, 101376, 'shared memory')

    arguments = dict(embed_dims=32, depths=(2,), num_heads=(2,), out_indices=(0,), window_size=3, drop_path_rate=0.0)
    model = SwinBackbone(backend='torch', mask_padding=True, **arguments).to(DEVICE)
    x, results = torch.randn(1, 3, 20, 16, device=DEVICE), []
    with warnings.catch_warnings(record=True) as caught, monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        replacements = BaseAttention.forward.replacements
        kernel = replacements[0]
        # as in a graph that was compiled before
        replacements[0] = kernel._replace(make_plan=lambda attention, *_: partial(plans.run_attention, attention))
        warnings.simplefilter('always')
        for model.backend in ('torch', 'triton', 'triton'):
            (y,) = model(x)
            results.append([y, *torch.autograd.grad(y.square().sum(), model.parameters())])
    replacements[0] = kernel
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-4)
    assert [str(warning.message) for warning in caught if 'Triton' in str(warning.message)] == [
        'Torch computes attention in place of the Triton kernel: The kernel does not run (OutOfResources: out of '
        'resource: shared memory, Required: 196608, Hardware limit: 101376. Reducing block sizes or `num_stages` may '
        'help.).'
    ]
    with pytest.raises(ValueError, match=r"'triton' cannot compute this: .* \(OutOfResources: .*196608"):
        model(x)


def test_it_is_remembered(monkeypatch):
    calls = []
    monkeypatch.setattr(trial, '_compare_with_torch', lambda *arguments: calls.append(arguments))
    for _ in range(3):
        assert find_fault(torch.bfloat16) is None
    assert len(calls) == 1
    find_fault(torch.bfloat16, (3, 4))
    assert len(calls) == 2


class SeesNothing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f'{func} was seen')


def no_hook(tensor):
    raise AssertionError('something is kept for backward')


@pytest.mark.parametrize('grad', ['enabled', 'no_grad', 'inference_mode'])
def test_it_disturbs_nobody(grad):
    state = torch.get_rng_state()
    with ExitStack() as stack:
        if grad != 'enabled':
            stack.enter_context(getattr(torch, grad)())
        stack.enter_context(torch.autocast(DEVICE.type, torch.bfloat16))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(no_hook, no_hook))
        stack.enter_context(SeesNothing())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter('error')
        assert find_fault() is None
        assert torch.is_grad_enabled() == (grad == 'enabled')
        assert torch.is_autocast_enabled(DEVICE.type)
    assert torch.equal(torch.get_rng_state(), state)
