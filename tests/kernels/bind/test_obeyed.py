"""What a user changed on a module is obeyed by every backend: type, hooks, methods of the instance, `backend`."""

import pytest
import torch
from helpers.kernels import count_blocks, refusal
from helpers.models.small_models import randomised
from torch import nn

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.replace import CannotRun, methods_of

pytestmark = pytest.mark.skipif(refusal(torch.float32) is not None, reason='the compiled library is not built')
KINDS = SwinBackbone, SwinV2Backbone
SIZES = dict(embed_dims=16, depths=(2, 1), num_heads=(2, 2), strides=(4, 2), out_indices=(0, 1), window_size=3)
IMAGE = torch.linspace(-1, 1, 3 * 40 * 44).sin().view(1, 3, 40, 44)


def make(kind, **arguments):
    torch.manual_seed(0)
    return randomised(kind=kind, **SIZES, drop_path_rate=0.0, **arguments)


@torch.no_grad()
def maps(model, backend):
    model.backend = backend
    return model(IMAGE)


def watch(model):
    """Wrap all methods of all modules on the instances, but for the model's own; return the names of called methods."""
    called = []

    def wrapped(name, method):
        def call(*args, **kwargs):
            called.append(name)
            return method(*args, **kwargs)

        return call

    for path, module in model.named_modules():
        for name in methods_of(type(module)) if path else ():
            if callable(getattr(module, name, None)) and not name.startswith('init_'):
                setattr(module, name, wrapped(f'{path}.{name}', getattr(module, name)))
    return called


@pytest.mark.parametrize('kind', KINDS)
def test_methods_of_instances_are_called(kind):
    model, expected = make(kind), maps(make(kind), 'torch')
    called = watch(model)
    for y, y_torch in zip(maps(model, 'torch'), expected):
        assert torch.equal(y, y_torch)
    of_torch = called[:]
    assert any('position_bias' in name for name in of_torch)
    assert any('project' in name for name in of_torch)
    called.clear()
    maps(model, 'auto')
    assert called == of_torch


@pytest.mark.parametrize('kind', KINDS)
def test_one_method_of_an_instance_changes_the_result(kind):
    attended = {'auto': [], 'torch': []}
    for name in ('position_bias', 'project', 'forward'):
        for backend, outputs in attended.items():
            model = make(kind)
            module = model.stages[0].blocks[1].attn.w_msa
            method = getattr(module, name)
            setattr(module, name, lambda *args, method=method: 1.5 * method(*args))
            outputs += maps(model, backend)
    for y, y_torch in zip(*attended.values()):
        torch.testing.assert_close(y, y_torch, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('method', ['__call__', '_call_impl', 'forward'])
def test_methods_of_a_subclass_are_called(kind, method):
    outputs = []
    for backend in ('auto', 'torch'):
        model = make(kind)
        for block in model.stages[0].blocks:
            base = type(block)
            overridden = {method: lambda self, x, base=base: getattr(base, method)(self, x) * 1.5}
            block.__class__ = type('Scaled', (base,), overridden)
        outputs.append(maps(model, backend))
    for y, y_torch in zip(*outputs):
        torch.testing.assert_close(y, y_torch, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('kind', KINDS)
def test_the_backend_of_a_block(kind, monkeypatch):
    calls, model = count_blocks(monkeypatch), make(kind)
    expected = maps(model, 'torch')
    model.backend = 'auto'
    model.stages[0].blocks[1].backend = 'torch'
    with torch.no_grad():
        for y, y_torch in zip(model(IMAGE), expected):
            torch.testing.assert_close(y, y_torch, rtol=1e-4, atol=1e-4)
    assert len(calls) == 2
    model.stages[0].blocks[0].attn.w_msa.backend = 'torch'
    with torch.no_grad():
        model(IMAGE)
    assert len(calls) == 3


@pytest.mark.parametrize('path', ['stages.0.blocks.1', 'patch_embed'])
def test_a_named_backend_inside_a_model_raises(path):
    model = make(SwinBackbone)
    model.get_submodule(path).backend = 'native'
    model.get_submodule(path).double()
    with pytest.raises(CannotRun, match='native'), torch.no_grad():
        model(IMAGE)


@pytest.mark.parametrize('path', ['stages.0.blocks.1', 'stages.0.blocks.1.ffn', 'patch_embed'])
def test_a_compiled_module_is_called(path):
    model, graphs = make(SwinBackbone), []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    expected = maps(model, 'torch')
    model.get_submodule(path).compile(backend=backend)
    for y, y_torch in zip(maps(model, 'auto'), expected):
        torch.testing.assert_close(y, y_torch, rtol=1e-4, atol=1e-4)
    assert graphs


class Shifted(nn.Linear):
    """A layer of a user."""

    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize('path', ['attn.w_msa.qkv', 'attn.w_msa.proj', 'ffn.layers.1'])
def test_a_subclass_of_a_module_inside(path):
    outputs = []
    for backend in ('auto', 'torch'):
        model = make(SwinBackbone)
        model.stages[0].blocks[1].get_submodule(path).__class__ = Shifted
        outputs.append(maps(model, backend))
    for y, y_torch in zip(*outputs):
        torch.testing.assert_close(y, y_torch, rtol=1e-4, atol=1e-4)
