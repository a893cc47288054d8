"""What a user changed on a module is obeyed by every backend: type, hooks, methods of the instance, `backend`."""

import gc
import itertools
from weakref import ref

import pytest
import torch
from helpers.kernels import count_blocks, refusal
from helpers.models.small_models import randomised
from torch import nn

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.kernels.changes import list_methods
from swin_backbone.kernels.swin import swin_layers
from swin_backbone.models.layers import PatchEmbed, PatchMerging, SwinBlock
from swin_backbone.models.layers.attention import WindowAttention
from swin_backbone.models.layers.swin_v2_block import WindowAttentionV2
from swin_backbone.models.windows import Windows
from swin_backbone.replace import CannotRun

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


def assert_close(found, expected):
    for y, other in zip(found, expected):
        torch.testing.assert_close(y, other, rtol=1e-4, atol=1e-4)


def watch(model):
    """Wrap all methods of all modules on the instances, but for the model's own; return the names of called methods."""
    called = []

    def wrapped(name, method):
        def call(*args, **kwargs):
            called.append(name)
            return method(*args, **kwargs)

        return call

    for path, module in model.named_modules():
        for name in list_methods(type(module)) if path else ():
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
    assert_close(*outputs)


@pytest.mark.parametrize('kind', KINDS)
def test_the_backend_of_a_block(kind, monkeypatch):
    calls, model = count_blocks(monkeypatch), make(kind)
    expected = maps(model, 'torch')
    model.backend = 'auto'
    model.stages[0].blocks[1].backend = 'torch'
    with torch.no_grad():
        assert_close(model(IMAGE), expected)
        assert len(calls) == 2
        model.stages[0].blocks[0].attn.w_msa.backend = 'torch'
        model(IMAGE)
    assert len(calls) == 3


@pytest.mark.parametrize('path', ['stages.0.blocks.1', 'patch_embed'])
def test_a_named_backend_inside_a_model_raises(path):
    model = make(SwinBackbone)
    model.get_submodule(path).backend = 'native'
    model.get_submodule(path).double()
    with pytest.raises(CannotRun, match='native'), torch.no_grad():
        model(IMAGE)


@pytest.mark.parametrize('path', ['stages.0.blocks.1', 'stages.0.blocks.1.attn', 'patch_embed'])
def test_a_compiled_module_is_called(path):
    model, graphs = make(SwinBackbone), []
    expected = maps(model, 'torch')
    model.get_submodule(path).compile(backend=lambda graph, _: graphs.append(graph) or graph)
    assert_close(maps(model, 'auto'), expected)
    assert graphs


class Shifted(nn.Linear):
    """A layer of a user."""

    def forward(self, x):
        return super().forward(x) + 1


def changed_weight(linear):
    return nn.Parameter(linear.weight.detach().flip(0))


def as_buffer(module):
    weight = module.weight.detach() * 2
    del module.weight
    module.register_buffer('weight', weight)


def swap_names(norm):
    weight, bias = norm.weight, norm.bias
    del norm.weight, norm.bias
    norm.bias, norm.weight = weight, bias


def doubled(module, args, y=None):
    return args[0] * 2 if y is None else y * 2


# After a warm call of a model: a change of a module, by the path of the module.
CHANGES = [
    ('stages.0.blocks.1.norm1', lambda norm: setattr(norm, 'eps', 0.5)),
    ('stages.0.blocks.1.norm2', lambda norm: setattr(norm, 'bias', None)),
    ('stages.0.blocks.1.norm1', as_buffer),
    ('stages.0.blocks.1.norm1.weight', lambda weight: weight.data.mul_(2)),
    ('stages.0.blocks.1.norm1.weight', lambda weight: setattr(weight, 'data', weight.data.flip(0))),
    ('stages.0.blocks.1.norm1.weight', lambda weight: setattr(weight, 'data', weight.data.repeat(2)[::2])),
    ('stages.0.blocks.1.attn.w_msa.qkv', lambda linear: setattr(linear, 'weight', changed_weight(linear))),
    ('stages.0.blocks.1.attn.w_msa', lambda attention: setattr(attention, 'scale', 3.0)),
    ('stages.0.blocks.1.attn.w_msa', lambda attention: setattr(attention, 'scale', torch.tensor(3.0))),
    ('stages.0.blocks.1.attn.w_msa', lambda attention: setattr(attention, 'qkv', Shifted(16, 48))),
    ('stages.0.blocks.1.attn.w_msa', lambda attention: setattr(attention, 'proj', nn.Linear(16, 16, bias=False))),
    ('stages.0.blocks.1.attn.w_msa.proj', lambda linear: setattr(linear, '__class__', Shifted)),
    ('stages.0.blocks.1.attn.w_msa.proj', lambda linear: setattr(linear, 'forward', torch.zeros_like)),
    ('stages.0.blocks.1.attn.w_msa.proj', lambda linear: linear.register_forward_hook(doubled)),
    ('stages.0.blocks.1.ffn', lambda mlp: mlp.register_forward_pre_hook(doubled)),
    ('stages.0.blocks.1.ffn.layers.0', lambda layers: setattr(layers[1], 'approximate', 'tanh')),
    ('stages.0.blocks.1.ffn.layers', lambda layers: layers.append(nn.Linear(16, 16))),
    ('stages.0.blocks.1', lambda block: setattr(block, 'shift', (2, 0))),
    ('stages.0.blocks.1', lambda block: setattr(block, 'window_size', (2, 3))),
    ('stages.0.blocks.1', lambda block: setattr(block, 'mask_padding', True)),
    ('stages.0.blocks.1', lambda block: setattr(block, 'norm1', nn.Identity())),
    ('stages.0.blocks.1', lambda block: block.register_forward_hook(doubled)),
    ('stages.0.blocks.1', lambda block: setattr(block, 'forward', torch.sin)),
    ('stages.0', lambda stage: setattr(stage, 'blocks', nn.ModuleList([*stage.blocks][::-1]))),
    ('stages.0.blocks', lambda blocks: blocks.append(nn.Tanh())),
    ('stages.0.downsample.norm', lambda norm: setattr(norm, 'eps', 0.5)),
    ('stages.0.downsample', lambda merging: setattr(merging, 'norm', nn.Identity())),
    ('patch_embed.projection', lambda projection: setattr(projection, 'bias', None)),
    ('patch_embed', lambda embed: setattr(embed, 'norm', nn.Identity())),
    ('norm0', lambda norm: setattr(norm, 'eps', 0.5)),
    ('norm0', lambda norm: norm.register_forward_hook(doubled)),
    ('norm0', swap_names),
    ('stages.0.blocks.1.norm2', swap_names),
    ('', lambda model: setattr(model, 'norm0', nn.LayerNorm(16, elementwise_affine=False))),
]


@pytest.mark.parametrize(('path', 'change'), CHANGES, ids=itertools.count())
def test_a_change_after_a_warm_call(path, change):
    """What was read of a module is read again."""
    model = make(SwinBackbone)
    before = maps(model, 'auto')
    maps(model, 'auto')
    with torch.no_grad():
        change(model.get_parameter(path) if path.endswith('.weight') else model.get_submodule(path))
    after = maps(model, 'auto')
    assert not torch.equal(after[0], before[0]) or not torch.equal(after[1], before[1])
    assert_close(after, maps(model, 'torch'))


@pytest.mark.parametrize('name', ['qkv', 'cpb_mlp.2'])
def test_a_bias_where_swin_v2_has_none(name):
    model = make(SwinV2Backbone)
    before, linear = maps(model, 'auto'), model.stages[0].blocks[1].attn.w_msa.get_submodule(name)
    linear.bias = nn.Parameter(torch.linspace(-1, 1, linear.out_features))
    after = maps(model, 'auto')
    assert not torch.equal(after[0], before[0])
    assert_close(after, maps(model, 'torch'))


PATCHES = [
    (nn.GELU, 'forward', lambda self, x: x.sin()),
    (PatchEmbed, 'forward', lambda self, x: self.projection(x).permute(0, 2, 3, 1).sin()),
    (SwinBlock, 'forward', lambda self, x: x.sin()),
    (SwinBlock, 'windows', lambda self, x: Windows(*x.shape[1:3], (3, 3), (1, 0))),
    (WindowAttention, 'forward', lambda self, x, *_: x.cos()),
    (WindowAttention, 'project', lambda self, x: 2 * self.qkv(x)),
    (WindowAttentionV2, 'position_bias', lambda self, *args: torch.zeros(2, 9, 9)),
    (nn.LayerNorm, 'forward', lambda self, x: x.sin()),
    (nn.LayerNorm, '__call__', lambda self, x: x.sin()),
    (SwinBlock, '__call__', lambda self, x: x.sin()),
    (PatchMerging, 'forward', lambda self, x: self.reduction(x[:, ::2, ::2].repeat(1, 1, 1, 4))),
]


@pytest.mark.parametrize('is_warm', [False, True])
@pytest.mark.parametrize(('kind', 'name', 'method'), PATCHES, ids=itertools.count())
def test_a_patch_of_a_class(kind, name, method, is_warm, monkeypatch):
    model = make(SwinV2Backbone if kind is WindowAttentionV2 else SwinBackbone)
    before = maps(model, 'auto') if is_warm else None
    monkeypatch.setattr(kind, name, method)
    after = maps(model, 'auto')
    assert_close(after, maps(model, 'torch'))
    assert before is None or not torch.equal(before[1], after[1])


def test_a_module_inside_itself_is_an_error_of_torch():
    model = make(SwinBackbone)
    maps(model, 'auto')
    layers = model.stages[0].blocks[1].ffn.layers
    layers.append(layers)
    with pytest.raises(RecursionError):
        maps(model, 'auto')


def test_a_class_of_a_user_is_read_at_each_call():
    shifts = itertools.cycle([(0, 0), (1, 1), (2, 0)])

    class Jittered(SwinBlock):
        def windows(self, x_BHWC):
            return super().windows(x_BHWC)._replace(shift=next(shifts))

    model = make(SwinBackbone)
    model.stages[0].blocks[1].__class__ = Jittered
    for _ in range(3):
        y, _ = maps(model, 'auto')
        next(shifts), next(shifts)
        y_torch, _ = maps(model, 'torch')
        torch.testing.assert_close(y, y_torch, rtol=1e-4, atol=1e-4)


def test_an_attribute_that_changes_in_place():
    model = make(SwinBackbone)
    model.stages[0].blocks[1].attn.w_msa.window_size = window = [3, 3]
    maps(model, 'auto')
    window[:] = 2, 2
    model.stages[0].blocks[1].backend = 'native'
    with pytest.raises(CannotRun, match='table'), torch.no_grad():
        model(IMAGE)


@pytest.mark.parametrize('kind', KINDS)
def test_a_warm_call_reads_nothing(kind, monkeypatch):
    model = make(kind)
    before = maps(model, 'auto')
    monkeypatch.setattr(swin_layers, 'read_block', None)
    for y, y_before in zip(maps(model, 'auto'), before):
        assert torch.equal(y, y_before)
    with pytest.raises(TypeError):
        model(IMAGE)  # with gradients


def test_what_was_read_ends_with_the_model():
    gc.collect()
    gc.disable()
    try:
        model = make(SwinBackbone)
        maps(model, 'auto')
        seen = [ref(one) for one in (*model.modules(), *model.parameters())]
        weight = ref(model.stages[0].blocks[0].norm1.weight)
        model.stages[0].blocks[0].norm1.weight = nn.Parameter(torch.ones(16))
        model(IMAGE)  # with gradients
        assert weight() is None
        del model
        assert not [one() for one in seen if one() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize('kind', KINDS)
def test_the_dtype_of_weights_after_a_warm_call(kind):
    """`bfloat16` writes into the parameters: autocast computes with such weights, the library does not."""
    model = make(kind)
    with torch.autocast('cpu', torch.bfloat16):
        maps(model, 'auto')
        model.bfloat16()
        for y, y_torch in zip(maps(model, 'auto'), maps(model, 'torch')):
            assert torch.equal(y, y_torch)
