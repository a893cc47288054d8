"""`--compile`: compilations and graph breaks are counted, with a backend of torch that generates no code."""

import copy
import pickle

import pytest
import torch
from helpers.models.small_models import TWO_STAGES, randomised
from mmdet.models.necks import FPN
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._inductor import cpu_vec_isa
from torch._inductor.async_compile import AsyncCompile
from torch.nn.parallel import DistributedDataParallel

from swin_backbone import SwinBackbone
from swin_backbone.workbench.runner import compile as compiling

SIZES = (80, 96), (75, 150), (120, 90)  # at least two windows on each side of each stage


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests():
    counters.clear()
    with torch._dynamo.config.patch(optimize_ddp=True):  # torch's default, before and after
        yield


class Model(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.backbone = randomised(**{**TWO_STAGES, **arguments}).train()
        self.neck = FPN([32, 64], 8, num_outs=2)

    def forward(self, x):
        return sum(y.square().mean() for y in self.neck(self.backbone(x)))


@pytest.fixture
def lines(monkeypatch):
    """The lines in the log."""
    lines = []
    monkeypatch.setattr(compiling, 'print_log', lambda text, *_: lines.append(text))
    return lines


def test_all_sizes_are_one_compilation(one_process):
    """Inside DistributedDataParallel with several buckets of gradients."""
    model = Model(with_cp=True, depths=(1, 1))
    eager = copy.deepcopy(model)
    compiling.compile_parts(model, 'eager')
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.01)
    for size in SIZES:
        x = torch.randn(2, 3, *size)
        for one in (parallel, eager):
            one.zero_grad()
            one(x).backward()
        for parameter, expected in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-3, atol=1e-3)
    assert counters['stats']['unique_graphs'] == 2  # backbone and neck
    assert not counters['graph_break']


@pytest.mark.parametrize('kind', ['patch_embed', pytest.param('backbone', marks=pytest.mark.slow)])
def test_inductors_code_is_for_all_sizes(monkeypatch, kind):
    """On CPUs Inductor lays convolutions out as channels_last, and takes other strides than the graph's as numbers."""
    monkeypatch.setattr(AsyncCompile, 'cpp_pybinding', lambda *_, **__: lambda *_: None)  # no C++ is compiled
    monkeypatch.setattr(cpu_vec_isa, 'valid_vec_isa_list', list)  # nor here
    backbone = Model(depths=(1,), num_heads=(2,), strides=(4,), out_indices=(0,)).backbone
    module = backbone if kind == 'backbone' else backbone.patch_embed
    with torch._inductor.config.patch(force_disable_caches=True):
        module.compile(dynamic=True)
        for size in SIZES:
            y = module(torch.randn(2, 3, *size))
            (y if kind == 'patch_embed' else y[0]).sum().backward()
    assert counters['stats']['unique_graphs'] == 1


def test_names_classes_and_copies_stay():
    model = Model()
    names = list(model.state_dict())
    compiling.compile_parts(model, 'eager')
    assert (list(model.state_dict()), type(model.backbone)) == (names, SwinBackbone)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(torch.randn(2, 3, *SIZES[0]))
    assert not counters['stats']


def _refuse(*_):
    raise RuntimeError('no compiler')


@pytest.mark.parametrize('backend', [_refuse, aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=_refuse)])
def test_eager_goes_on_if_torch_cannot_compile(lines, backend):
    model = Model(depths=(1,), num_heads=(2,), strides=(4,), out_indices=(0,))
    compiling.compile_parts(model, backend)
    with pytest.raises(ValueError, match='the input must be 4-D'):
        model.backbone(torch.randn(2, 4, 20, 20))
    assert not lines
    for _ in range(2):
        sum(x.sum() for x in model.backbone(torch.randn(2, 3, 40, 40))).backward()
    (text,) = lines
    assert text.startswith('--compile has no effect on backbone: torch cannot compile it (')
    assert 'no compiler' in text


def test_without_torchs_attribute_the_module_compiles_itself(monkeypatch):
    options = []
    monkeypatch.setattr(nn.Module, 'compile', lambda module, **given: options.append(given))
    model = Model()
    compiling.compile_parts(model, 'eager')
    model(torch.randn(2, 3, *SIZES[0]))
    assert options == [dict(dynamic=True, backend='eager')] * 2


def test_nothing_is_compiled_on_a_cpu(lines):
    model = Model()
    compiling.compile_model(model)
    assert model.backbone._compiled_call_impl is None
    assert len(lines) == 1
