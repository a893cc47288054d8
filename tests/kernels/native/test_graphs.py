"""Graphs and dispatch modes record the library's layers as operators of torch, with the results of eager mode.

tests/models/under_torch_modes compile whole backbones, and tests/kernels/foreign layers of other packages.
"""

import copy
import gc
from collections import Counter
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from helpers.graphs import layers_in, record_graphs
from helpers.models.blocks import autocast_to, cases, make_block
from helpers.models.small_models import TWO_STAGES, randomised
from helpers.versions import needs_torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import swin_backbone
from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.kernels.native import computations, library, memory
from swin_backbone.kernels.swin import blocks, swin_layers
from swin_backbone.models.layers import SwinV2Block

pytestmark = needs_torch('2.6', 'tracer that records operators of the library')  # compat.GRAPH_TRACERS
KINDS = [SwinBackbone, SwinV2Backbone]
LAYERS = {'project': 2, 'block': 3, 'normalise_output': 2}  # of TWO_STAGES
ONE_STAGE = dict(depths=(1,), num_heads=(2,), strides=(4,), out_indices=(0,))  # compiled in a third of the time
LAYERS_OF_ONE = {'project': 1, 'block': 1, 'normalise_output': 1}
X = torch.linspace(-1, 1, 2 * 3 * 40 * 90).view(2, 3, 40, 90).sin()


def graphs_of(model, x):
    """Return the outputs of the compiled model, and the layers in each graph."""
    compiled, graphs = record_graphs(model, fullgraph=True)
    return compiled(x), [layers_in(one.graph) for one in graphs]


def close(outputs, expected, bound=1e-6):
    return all((a - b).abs().max() <= bound * b.abs().max().clamp(min=1e-3) for a, b in zip(outputs, expected))


@pytest.mark.parametrize(
    ('kind', 'backend', 'sizes', 'expected'),
    [(SwinBackbone, 'auto', {}, LAYERS), (SwinV2Backbone, 'native', ONE_STAGE, LAYERS_OF_ONE)],
)
def test_a_graph_has_an_operator_for_each_layer(kind, backend, sizes, expected):
    model = randomised(kind=kind, backend=backend, **{**TWO_STAGES, **sizes})
    with torch.no_grad():
        outputs, graphs = graphs_of(model, X)
        assert graphs == [expected]
        assert close(outputs, model(X))


@pytest.mark.parametrize(
    ('kind', 'changed'),
    [(SwinBackbone, dict(embed_dims=20, num_heads=(4,))), (SwinV2Backbone, dict(window_size=40))],
)
def test_a_graph_has_torch_operations_for_what_the_library_does_not_take(kind, changed):
    """Five channels of a head; windows of 1,600 places."""
    model = randomised(kind=kind, **{**TWO_STAGES, **ONE_STAGE, **changed})
    with torch.no_grad():
        outputs, graphs = graphs_of(model, X)
        assert graphs == [{'project': 1, 'normalise_output': 1}]
        assert close(outputs, model(X), 1e-5)


@needs_torch('2.9', 'has_static_value')
def test_windows_of_any_size_are_torchs():
    """A small map that is not padded is a window, whose sides are symbols in a graph for maps of any size."""
    backbone = randomised(**{**TWO_STAGES, **ONE_STAGE}, window_size=7, small_map='shrink')
    block, x = backbone.stages[0].blocks[0], X.flatten()[: 30 * 32].view(1, 5, 6, 32)
    with torch.no_grad():
        compiled = torch.compile(block, backend='eager', fullgraph=True, dynamic=True)
        exported = torch.export.export(block, (x,), dynamic_shapes=({1: Dim.AUTO, 2: Dim.AUTO},))
        assert not layers_in(exported.graph)
        assert close((compiled(x), exported.module()(x)), [block(x)] * 2, 1e-5)


def test_a_training_step_of_what_the_library_does_not_take():
    changed = dict(embed_dims=20, num_heads=(4,))
    model, x = randomised(kind=SwinV2Backbone, **{**TWO_STAGES, **ONE_STAGE, **changed}), X[:1, :, :13, :14]
    with torch.autocast('cpu', torch.bfloat16):
        assert close(graphs_of(model, x)[0], model(x), 1e-2)
    torch._dynamo.reset()
    losses = [sum(y.sin().sum() for y in run(x)) for run in (torch.compile(model, backend='aot_eager'), model)]
    assert close(*(torch.autograd.grad(loss, model.stages.parameters()) for loss in losses), 1e-4)


@pytest.mark.parametrize(
    ('kind', 'saves', 'sizes'),
    [(SwinBackbone, True, dict(ONE_STAGE, depths=(2,))), (SwinV2Backbone, False, ONE_STAGE)],
)
def test_a_training_step_of_three_sizes_is_one_compilation(kind, saves, sizes, monkeypatch):
    """tests/workbench/runner/test_compile.py compiles a whole V1 with a neck."""
    monkeypatch.setattr(blocks, 'saves_activations', lambda *_: saves)
    counters['stats'].clear()
    model = randomised(kind=kind, **{**TWO_STAGES, **sizes})
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True, dynamic=True)
    for height, width in ((64, 80), (58, 121), (75, 58)):
        x = torch.randn(2, 3, height, width)
        results = []
        for run in (compiled, model):
            outputs = run(x)
            loss = sum((y * y.detach().sin()).sum() for y in outputs)
            results.append((outputs, torch.autograd.grad(loss, [*model.parameters()])))
        assert close(results[0][0], results[1][0])
        assert close(results[0][1], results[1][1], 1e-5)
    assert counters['stats']['unique_graphs'] == 1


@pytest.mark.parametrize('training', [False, True])
def test_without_fullgraph_there_is_one_graph_too(training, monkeypatch):
    """`fullgraph` also permits results whose sizes are known at run time alone."""
    monkeypatch.setattr(blocks, 'saves_activations', lambda *_: True)
    model = randomised(**{**TWO_STAGES, **ONE_STAGE}).train(training)
    compiled = torch.compile(model, backend='aot_eager')
    counters.clear()
    with torch.set_grad_enabled(training):
        for _ in range(2):
            outputs = compiled(X)
            if training:
                torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
        assert close(outputs, model(X))
    assert counters['frames'] == {'total': 1, 'ok': 1}
    assert counters['stats']['unique_graphs'] == 1


def check_saved_bytes(block, x, dtype, threads=1):
    few = mock.patch.object(torch, 'get_num_threads', return_value=threads)
    with autocast_to(dtype), few:
        plan = swin_layers.plan_block(block.train(), x.requires_grad_())
        recipe = plan.recipe
        computation = recipe.computation._replace(saves_activations=True)
        _, saved = computation.forward(x.detach(), plan.prepared)
        bound = computation.bound_saved_bytes(x.shape, *recipe.make_weights(*recipe.parameters))
    assert len(saved) <= bound


@given(case=cases(), bfloat16=st.booleans(), threads=st.integers(1, 4))
@settings(max_examples=25)
def test_a_graph_has_memory_for_what_a_block_saves(case, bfloat16, threads):
    check_saved_bytes(*case, torch.bfloat16 if bfloat16 else torch.float32, threads)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('extra_norm', [False, True])
def test_a_graph_has_memory_for_the_branches_of_v2(extra_norm, dtype):
    """V2 saves two branches more than V1, with and without a third norm."""
    block = make_block(SwinV2Block, (4, 8), (0, 0), 1, 16, 'native', extra_norm=extra_norm)
    check_saved_bytes(block, torch.randn(1, 80, 160, 16), dtype)


def test_values_without_memory_are_computed_again(monkeypatch):
    monkeypatch.setattr(blocks, 'saves_activations', lambda *_: True)
    model = randomised(**TWO_STAGES).train()
    results = []
    for _ in range(2):
        with Layers():
            outputs = model(X)
        results.append(torch.autograd.grad(sum(y.square().sum() for y in outputs), [*model.parameters()]))
        monkeypatch.setattr(computations.BlockComputation, 'bound_saved_bytes', lambda *_: memory.LINE)
    assert close(*results, 1e-5)


@given(case=cases())
@settings(max_examples=25)
def test_drawn_blocks_as_operators_are_the_library(case):
    """A dispatch mode records an operator; without a mode, the same block calls the library itself."""
    block, x = case
    block.train()
    for dtype in (torch.float32, torch.bfloat16):
        results = []
        for mode in (layers := Layers(), nullcontext()):
            leaf = x.clone().requires_grad_()
            with autocast_to(dtype), mode:
                y = block(leaf)
                grads = torch.autograd.grad(y.square().sum(), [leaf, *block.parameters()], allow_unused=True)
            results.append((y, grads))
        assert layers.seen == {'block': 1, 'block_backward': 1}
        assert torch.equal(results[0][0], results[1][0])
        for ours, expected in zip(results[0][1], results[1][1]):
            assert (ours is None) == (expected is None)
            assert ours is None or close([ours], [expected], 1e-5)


class Layers(TorchDispatchMode):
    """Count the library's operators."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == 'swin_backbone':
            self.seen[func._schema.name.split('::')[1]] += 1
        return func(*args, **(kwargs or {}))


def test_opcheck():
    block = randomised(**TWO_STAGES).stages[0].blocks[0]
    x = torch.randn(2, 9, 8, block.norm1.weight.numel(), requires_grad=True)
    recipe = swin_layers.plan_block(block, x).recipe
    weights = [w if w is None else w.detach().requires_grad_() for w in recipe.make_weights(*recipe.parameters)]
    windows = [7, 7], [3, 3], False, True
    for saves in (False, True):
        arguments = x, *weights, None, *windows, 0.25, [1e-5, 1e-5], torch.float32, saves
        tests = ['test_schema', 'test_autograd_registration', 'test_faketensor']
        opcheck(torch.ops.swin_backbone.block.default, arguments, test_utils=tests)
    norm = randomised(**TWO_STAGES).norm0
    opcheck(torch.ops.swin_backbone.normalise_output.default, (x, norm.weight, norm.bias, 1e-5))
    embed = randomised(**TWO_STAGES).patch_embed
    image = torch.randn(1, 3, 15, 22, requires_grad=True)
    vectors = embed.projection.weight, embed.projection.bias, embed.norm.weight, embed.norm.bias
    opcheck(torch.ops.swin_backbone.project.default, (image, *vectors, False, 1e-5, True, torch.float32, True))


def test_weights_may_change_between_calls():
    model = randomised(**{**TWO_STAGES, **ONE_STAGE})
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            assert close(compiled(X), model(X))
            for parameter in model.parameters():
                parameter.data.mul_(1.5)  # leaves no trace in the tensor


def test_weights_are_packed_once(monkeypatch):
    packed = []
    pack = library.get_libswin().pack
    monkeypatch.setattr(library.get_libswin(), 'pack', lambda *args: packed.append(args) or pack(*args))
    model = randomised(**{**TWO_STAGES, **ONE_STAGE})
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    with torch.no_grad():
        compiled(X)
        number = len(packed)
        compiled(X)
    assert number == len(packed) == 4 * LAYERS_OF_ONE['block'] + LAYERS_OF_ONE['project']


def test_packed_weights_end_with_the_weights():
    gc.collect()
    number = len(memory._caches_of_weights)
    model = randomised(**TWO_STAGES)
    with torch.no_grad(), Layers():
        model(X)
    assert len(memory._caches_of_weights) == number + LAYERS['block'] + LAYERS['project']
    del model
    gc.collect()
    assert len(memory._caches_of_weights) == number
    weight = torch.zeros(5)
    assert memory.find_weight_cache(weight) is memory.find_weight_cache(weight[:2])
    assert memory.find_weight_cache(weight) is not memory.find_weight_cache(weight[2:])


@pytest.mark.parametrize('kind', KINDS)
def test_export_records_the_operators_for_every_size(kind):
    sizes, expected = ({}, LAYERS) if kind is SwinBackbone else (ONE_STAGE, LAYERS_OF_ONE)
    model = randomised(kind=kind, **{**TWO_STAGES, **sizes})
    free = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        program = torch.export.export(model, (X,), dynamic_shapes=({0: free, 2: free, 3: free},), strict=False)
        assert layers_in(program.graph) == expected
        for x in (X, torch.randn(1, 3, 63, 77)):
            assert close(program.module()(x), model(x))
        model.backend = 'torch'
        assert not layers_in(torch.export.export(model, (X,)).graph)


def test_fake_tensors_and_modes_see_operators(monkeypatch):
    monkeypatch.setattr(blocks, 'saves_activations', lambda *_: True)
    model = randomised(**TWO_STAGES)
    with Layers() as mode, torch.no_grad():
        outputs = model(X)
    assert mode.seen == LAYERS
    assert close(outputs, model(X))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.no_grad():
        shapes = [y.shape for y in copy.deepcopy(model)(fake.from_tensor(X))]
    assert shapes == [y.shape for y in outputs]
    with fake:
        step = copy.deepcopy(model).train()(fake.from_tensor(X))
        torch.autograd.backward(step, [torch.ones_like(y) for y in step])


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    model = randomised(**{**TWO_STAGES, **ONE_STAGE})
    with torch.no_grad(), torch.autocast('cpu', dtype):
        outputs, graphs = graphs_of(model, X)
        expected = model(X)
    assert graphs == [LAYERS_OF_ONE]
    assert [y.dtype for y in outputs] == [y.dtype for y in expected]
    assert close(outputs, expected)


def test_eight_bits():
    model = swin_backbone.accelerate(randomised(**{**TWO_STAGES, **ONE_STAGE}), precision='int8')
    with torch.no_grad():
        outputs, graphs = graphs_of(model, X)
        assert graphs == [LAYERS_OF_ONE]
        assert close(outputs, model(X))
    outputs, graphs = graphs_of(model, X)  # in training, float32
    assert close(outputs, model(X))


def test_drop_path_draws_in_the_graph():
    model = randomised(**{**TWO_STAGES, **ONE_STAGE, 'depths': (2,), 'drop_path_rate': 0.5}).train()
    results = []
    for run in (torch.compile(model, backend='aot_eager', fullgraph=True), model):
        torch.manual_seed(3)
        results.append(run(X))
    assert close(*results)


def test_changes_of_a_user_are_obeyed():
    model = randomised(**{**TWO_STAGES, **ONE_STAGE, 'depths': (2,)})
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    with torch.no_grad():
        compiled(X)
        model.stages[0].blocks[0].attn.forward = lambda x, windows: x  # torch.compile compiles again
        assert close(compiled(X), model(X), 1e-5)
        model.stages[0].blocks[1].norm1.register_forward_hook(lambda module, args, y: 2 * y)
        outputs, graphs = graphs_of(model, X)
        assert graphs == [{'project': 1, 'normalise_output': 1}]
        assert close(outputs, model(X), 1e-5)


def test_transforms_are_torchs():
    """`torch.func` needs rules that an operator lacks, as second derivatives and batches."""
    model = randomised(**{**TWO_STAGES, **ONE_STAGE})

    def first(x):
        return model(x)[0]

    batched = torch.vmap(first)
    x = torch.randn(2, 1, 3, 40, 48)
    with torch.no_grad():
        expected = batched(x)
        assert close([torch.compile(batched, backend='eager')(x)], [expected], 1e-5)


def test_onnx_export_has_no_operators_of_the_library():
    pytest.importorskip('onnxscript')
    model = randomised(**ONE_STAGE)
    program = torch.onnx.export(model, (X,), dynamo=True, verbose=False)
    assert {node.domain for node in program.model.graph} <= {'', 'pkg.onnxscript.torch_lib'}


@pytest.mark.slow
def test_inductor_and_aot_inductor():
    model = randomised(**TWO_STAGES)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        for x in (X, torch.randn(1, 3, 63, 77)):
            assert close(compiled(x), model(x))
        package = torch._inductor.aoti_compile_and_package(torch.export.export(model, (X,)))
        assert close(torch._inductor.aoti_load_package(package)(X), model(X))
