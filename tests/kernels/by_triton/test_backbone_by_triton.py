"""Backbones with attention by the Triton kernel: memory, compilation, and the choice of the kernel.

tests/models/layers/test_whole_backbones.py compares outputs and gradients with the reference.
"""

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.paper import Traffic
from benchmarks.timing import bytes_kept
from swin_backbone import SwinBackbone
from swin_backbone.kernels.triton import availability, plans, trial
from swin_backbone.kernels.triton.tiles import Variant
from swin_backbone.models.windows import Windows
from swin_backbone.replace import CannotRun

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
TINY = dict(embed_dims=32, depths=(2,), num_heads=(2,), out_indices=(0,), drop_path_rate=0.0)
needs_triton = pytest.mark.skipif(
    availability.find_fault(Variant(DEVICE, torch.float32, 16, (7, 7), (3, 3), False, False, False)) is not None,
    reason='the Triton kernel does not run here',
)


def make_backbone(backend, **arguments):
    torch.manual_seed(0)
    model = SwinBackbone(backend=backend, **{**TINY, **arguments})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.to(DEVICE)


def maps_and_gradients(model, x_BCHW):
    maps = model(x_BCHW)
    return [*maps, *torch.autograd.grad(sum(x.float().square().mean() for x in maps), list(model.parameters()))]


def assert_near(results, expected, tolerance):
    largest = max(x.abs().max() for x in expected)
    for result, x in zip(results, expected):
        # The gradient of a bias of keys is rounding alone. Small gradients are compared with the largest.
        assert (result - x).abs().max() <= tolerance * max(x.abs().max(), 1e-2 * largest)


class Adapted(nn.Linear):
    """A user's layer: the output for zeros is not the bias."""

    def forward(self, x):
        return super().forward(x + 0.5)


@needs_triton
@pytest.mark.parametrize('kind', ['subclass', 'hook', 'no bias'])
def test_padding_has_what_another_qkv_gives_for_zeros(kind):
    results, x = [], torch.ones(1, 3, 18, 22, device=DEVICE)
    for backend in ('triton', 'torch'):
        model = make_backbone(backend, window_size=4, qkv_bias=kind != 'no bias', depths=(1,))
        for block in model.stages[0].blocks:
            attention = block.attn.w_msa
            if kind == 'hook':
                attention.qkv.register_forward_hook(lambda _module, _inputs, output: output + 0.5)
            elif kind == 'subclass':
                other = Adapted(32, 96).to(DEVICE)
                other.load_state_dict(attention.qkv.state_dict())
                attention.qkv = other
        results.append(maps_and_gradients(model, x))
    assert_near(*results, 1e-4)


@needs_triton
def test_padding_costs_no_copy_of_a_map_and_no_product():
    model, x = make_backbone('triton'), torch.randn(1, 3, 36, 40, device=DEVICE)
    with Traffic() as traffic:
        maps_and_gradients(model, x)
    assert traffic.kernels['attend_in_windows'] == traffic.kernels['attend_in_windows_backward'] == 2
    assert not {'constant_pad_nd', 'cat', 'new_zeros'} & traffic.kernels.keys()
    assert traffic.kernels['addmm'] == 8  # four layers in each block


@pytest.mark.slow  # test_opcheck of test_triton.py compiles the operators, and test_exports_whole records a backbone
@needs_triton
@pytest.mark.parametrize('dynamic', [False, True])
def test_compiles_whole(dynamic):
    model = make_backbone('triton', depths=(1,))
    x = torch.randn(1, 3, 40, 50, device=DEVICE)
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager', dynamic=dynamic)
    assert_near(maps_and_gradients(compiled, x), maps_and_gradients(model, x), 1e-4)
    if dynamic:
        with torch._dynamo.config.patch(error_on_recompile=True):
            x = torch.randn(1, 3, 56, 44, device=DEVICE)
            assert_near(maps_and_gradients(compiled, x), maps_and_gradients(model, x), 1e-4)


@needs_triton
def test_exports_whole():
    model = make_backbone('triton').eval()
    x = torch.randn(1, 3, 40, 50, device=DEVICE)
    exported = torch.export.export(model, (x,))
    operators = [str(node.target) for node in exported.graph.nodes if 'swin_backbone' in str(node.target)]
    assert operators == ['swin_backbone.attend_in_windows.default'] * 2
    assert_near(exported.module()(x), model(x), 1e-5)


@needs_triton
def test_training_keeps_no_attention_weights():
    mmdet_swin = pytest.importorskip('mmdet.models.backbones.swin', reason='mmdet is not installed')
    x = torch.randn(1, 3, 52, 52, device=DEVICE)
    sizes = dict(depths=(2,), num_heads=(3,), out_indices=(0,), drop_path_rate=0.0)
    arguments = dict(embed_dims=96, window_size=7, **sizes)
    peer = bytes_kept(mmdet_swin.SwinTransformer(**sizes, strides=(4,)).to(DEVICE), x, torch.float32)
    ours = bytes_kept(make_backbone('triton', **arguments), x, torch.float32)
    weights = 4 * 49 * 49 * 2 * 3 * 2 * 2  # of all windows of all blocks
    assert ours < peer - weights
    assert bytes_kept(make_backbone('triton', with_cp=True, **arguments), x, torch.float32) < 0.13 * peer


def takes(backend, device=DEVICE, dtype=torch.float32, head_dim=32, window_size=(7, 7), dropout=0.0):
    """Return whether there is a plan for maps with device, dtype and shape alone."""
    x = SimpleNamespace(device=device, dtype=dtype, shape=(1, 7, 7, 2 * head_dim))
    attention = SimpleNamespace(num_heads=2, attn_drop_rate=dropout, training=True, backend=backend)
    planned = plans.plan_attention(attention, x, Windows(7, 7, window_size))
    if isinstance(planned, str) and backend == 'triton':
        raise CannotRun(backend, planned)
    return callable(planned)


@pytest.fixture
def nothing_tried(monkeypatch):
    monkeypatch.setattr(availability, 'FAULTS', {})
    monkeypatch.setattr(availability, 'WARNED', set())


@needs_triton
@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        (dict(dropout=0.1), 'attn_drop_rate is 0.1'),
        (dict(window_size=(24, 24)), 'not 24x24'),
        (dict(dtype=torch.float64), 'not torch.float64'),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(changes, said):
    with pytest.raises(ValueError, match=f"backend='triton' .*{said}"):
        takes('triton', **changes)
    assert takes('triton')


def test_auto_takes_the_kernel_on_cuda_in_half_precision(monkeypatch, nothing_tried):
    monkeypatch.setattr(availability, '_run_trial', lambda *args: None)
    cuda = torch.device('cuda', 0)
    for dtype in (torch.float16, torch.bfloat16):
        assert takes('auto', cuda, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for changes in (dict(dropout=0.1), dict(window_size=(24, 24)), dict(device=torch.device('cpu'))):
            assert not takes('auto', **{**dict(device=cuda, dtype=torch.float16), **changes})


OLD_TORCH = SimpleNamespace(allow_tf32=False)


@pytest.mark.parametrize(
    ('of_torch', 'setting', 'values'),
    [
        (torch.backends.cuda.matmul, 'allow_tf32', (True, False)),
        (torch.backends.cuda.matmul, 'fp32_precision', ('tf32', 'ieee')),
        (OLD_TORCH, 'allow_tf32', (True, False)),
    ],
)
def test_auto_takes_the_kernel_in_float32_where_tf32_is_allowed(monkeypatch, nothing_tried, of_torch, setting, values):
    if not hasattr(of_torch, setting):
        pytest.skip('since torch 2.9')
    monkeypatch.setattr(availability, '_run_trial', lambda *args: None)
    if of_torch is OLD_TORCH:
        monkeypatch.setattr(torch.backends.cuda, 'matmul', OLD_TORCH)
    before = getattr(of_torch, setting)
    try:
        for value in values:
            setattr(of_torch, setting, value)
            assert bool(takes('auto', torch.device('cuda', 0))) == (value == values[0])
    finally:
        setattr(of_torch, setting, before)


def test_one_warning_says_why_the_expected_kernel_is_not_used(monkeypatch, nothing_tried):
    monkeypatch.setattr(availability, '_run_trial', lambda *args: 'The kernel does not run (because).')
    with pytest.warns(
        UserWarning, match='Torch computes .* in place of the Triton kernel: The kernel does not run'
    ) as warned:
        assert [takes('auto', torch.device('cuda', 0), torch.float16) for _ in range(2)] == [False, False]
    assert len(warned) == 1


def test_without_triton_the_error_says_so(monkeypatch, nothing_tried):
    monkeypatch.setitem(sys.modules, 'triton', None)
    with pytest.raises(ValueError, match=r'The kernel does not run \(ModuleNotFoundError: .*triton'):
        make_backbone('triton')(torch.randn(1, 3, 40, 50, device=DEVICE))


@needs_triton
def test_where_it_does_not_compile_it_says_so(monkeypatch, nothing_tried):
    def fail(*args):
        raise RuntimeError('ptxas says no\nand more')

    monkeypatch.setattr(trial, 'launch_backward', fail)
    with pytest.raises(ValueError, match=r'The kernel does not run \(RuntimeError: ptxas says no\)'):
        make_backbone('triton')(torch.randn(1, 3, 36, 36, device=DEVICE))
