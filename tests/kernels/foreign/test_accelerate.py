"""`swin_backbone.accelerate` on models of mmdet and mmseg."""

import copy
import logging
import pickle
import re

import pytest
import torch
from helpers.adapters.acceleration import accelerated, assert_close, results
from helpers.graphs import layers_in, record_graphs
from torch import nn

import swin_backbone
from swin_backbone.kernels.foreign import accelerate as swap
from swin_backbone.kernels.native import availability
from swin_backbone.kernels.swin import blocks
from swin_backbone.models.layers import SwinBlock

pytestmark = pytest.mark.toolboxes
X = torch.linspace(-1, 1, 2 * 3 * 61 * 83).view(2, 3, 61, 83).sin()


def build(toolbox, eval=False, depths=(2, 2), **arguments):
    pytest.importorskip(toolbox)
    from importlib import import_module

    kind = import_module(f'{toolbox}.models.backbones.swin').SwinTransformer
    torch.manual_seed(0)
    model = kind(
        embed_dims=16, depths=depths, num_heads=(1, 2), strides=(4, 2), out_indices=(0, 1), window_size=4, **arguments
    )
    model.train(not eval)  # no chained call: `train` of mmdet's Swin returns None
    return model


@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg'])
@pytest.mark.parametrize('with_cp', [False, True])
def test_outputs_gradients_and_random_numbers_stay(toolbox, with_cp, calls):
    model = build(toolbox, drop_path_rate=0.3, with_cp=with_cp)
    expected = results(model, X)
    names, state = list(model.state_dict()), torch.get_rng_state()
    assert swin_backbone.accelerate(model) is model
    assert torch.equal(state, torch.get_rng_state())
    assert list(model.state_dict()) == names
    assert len(accelerated(model)) == 8
    calls.clear()
    assert_close(results(model, X), expected)
    assert len(calls) == 4
    assert all(y.is_contiguous() for y in model(X))
    swin_backbone.restore(model)
    assert not accelerated(model)
    assert all(torch.equal(a, b) for a, b in zip(results(model, X), expected))


@pytest.mark.parametrize(('dtype', 'layers'), [(torch.float64, 6), (torch.bfloat16, 8), (torch.float16, 8)])
def test_another_default_dtype(dtype, layers):
    """The trial of a layer draws maps of float32, as the layer's weights are.

    Under float64, mmdet's own mask of shifted blocks is float64, and mmdet's forward of the two blocks raises.
    """
    model = build('mmdet')
    torch.set_default_dtype(dtype)
    swin_backbone.accelerate(model)
    assert len(accelerated(model)) == layers


def test_a_scripted_module_beside_a_swin():
    model = nn.ModuleDict(dict(backbone=build('mmdet'), head=torch.jit.script(nn.Linear(4, 4))))
    swin_backbone.accelerate(model)
    assert len(accelerated(model)) == 8


def test_precision_int8(calls):
    """All layers multiply in eight bits, until a gradient is recorded or the precision is taken back."""
    model = build('mmdet', eval=True)
    with torch.no_grad():
        expected = model(X)
        swin_backbone.accelerate(model, precision='int8')
        in_eight_bits = model(X)
        assert all(0 < (a - b).std() < 0.03 * b.std() for a, b in zip(in_eight_bits, expected))
    assert_close(model(X), expected)
    with torch.no_grad():
        assert_close(swin_backbone.accelerate(model)(X), expected)
    swin_backbone.accelerate(model, precision='int8').requires_grad_(False)
    assert all(map(torch.equal, model(X), in_eight_bits))
    assert {torch.int8, torch.float32} == {*calls}


def own(kind=swin_backbone.SwinBackbone, **arguments):
    return kind(embed_dims=16, depths=(2,), num_heads=(1,), strides=(4,), out_indices=(0,), **arguments)


@pytest.mark.parametrize(
    ('make', 'problem'),
    [
        (lambda: nn.Linear(2, 2), 'takes a Swin, and the library computes no layer of this model'),
        (lambda: nn.Linear(2, 2, device='meta'), 'takes a model on a CPU, got meta'),
        (lambda: build('mmdet'), 'takes the compiled library: it is not built'),
        (lambda: own().bfloat16(), 'takes a Swin, .* no layer of this model: .* takes .* torch.float32 in memory'),
        (lambda: own(backend='torch'), "takes a Swin, .* no layer of this model: The backend is 'torch'"),
    ],
)
def test_eight_bits_that_would_be_float32_are_refused(monkeypatch, make, problem):
    if 'not built' in problem:
        monkeypatch.setattr(availability, 'load_library', lambda: (None, 'it is not built'))
        monkeypatch.setattr(swap, 'find_reason_against_dtype', availability.find_reason_against_dtype.__wrapped__)
    model = make()
    with pytest.raises(ValueError, match=f"precision='int8' {problem}"):
        swin_backbone.accelerate(model, precision='int8')
    assert not any('int8' in vars(one).values() for one in model.modules())


def test_the_log_names_our_layers_that_are_not_in_eight_bits():
    model = own()
    attention = model.stages[0].blocks[1].attn.w_msa
    attention.qkv = nn.Sequential(attention.qkv)  # an adapter does so, as LoRA
    model.stages[0].blocks[0].__class__ = type(
        'Own', (SwinBlock,), {'forward': lambda self, x: SwinBlock.forward(self, x)}
    )
    reason = 'attn.w_msa.qkv of SwinBlock is not as it was built.'
    assert swap.accelerate_swin(model, precision='int8') == [f'1 x SwinBlock not in eight bits: {reason}']
    (line,) = swap.accelerate_swin(own(swin_backbone.SwinMLPBackbone), precision='int8')
    assert line == '2 x SwinMLPBlock not in eight bits: The compiled library has no block of Swin-MLP.'
    assert not swap.accelerate_swin(model)


def test_dropout_of_a_training_is_no_reason_against_eight_bits():
    model = own(drop_rate=0.1).train()
    model.stages[0].blocks[0].eval()
    modes = [one.training for one in model.modules()]
    assert swap.accelerate_swin(model, precision='int8') == []
    assert modes == [one.training for one in model.modules()]


def test_the_log_has_the_reasons_before_the_refusal(caplog):
    caplog.set_level(logging.INFO, 'swin_backbone')
    with pytest.raises(ValueError, match='the library computes no layer'):
        swin_backbone.accelerate(own(backend='torch'), precision='int8')
    assert "accelerate: 2 x SwinBlock not in eight bits: The backend is 'torch'." in caplog.messages


def test_the_hook_validates_in_eight_bits_and_trains_without(calls):
    """Also frozen layers, which have no gradients; `accelerate` alone lets these train in eight bits."""
    pytest.importorskip('mmengine', reason='mmengine is not installed')
    model = swin_backbone.SwinBackbone(arch='nano', frozen_stages=1, drop_path_rate=0.0)
    hook, runner = swin_backbone.AccelerateHook(precision='int8'), type('Runner', (), {'model': model})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook.before_run(runner)
    for _ in range(2):
        calls.clear()
        sum(y.sum() for y in model.train()(X)).backward()
        optimizer.step()
        hook.before_val(runner)
        with torch.no_grad():
            seen, expected = model.eval()(X), swin_backbone.accelerate(copy.deepcopy(model), precision='int8')(X)
        hook.after_val(runner)
        assert all(map(torch.equal, seen, expected))
        assert calls == 8 * [torch.float32] + 16 * [torch.int8]
    calls.clear()
    swin_backbone.accelerate(model.train(), precision='int8')(X)
    assert calls == 2 * [torch.int8] + 6 * [torch.float32]


def test_second_derivatives_and_batches_of_gradients(calls):
    """Torch computes them with the original's forward, in each kind of layer, with equal draws of drop path."""
    model = build('mmdet', drop_path_rate=0.3)

    def derivatives():
        torch.manual_seed(1)
        leaves = [X[..., :33, :40].clone().requires_grad_(), *model.parameters()]
        y = torch.cat([one.flatten() for one in model(leaves[0])])
        once = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
        twice = torch.autograd.grad(sum(one.square().sum() for one in once), leaves)
        y = torch.cat([one[:, :2].mean((2, 3)).flatten() for one in model(leaves[0])])
        return [*once, *twice, *torch.autograd.grad(y, leaves, torch.eye(len(y)), is_grads_batched=True)]

    expected = derivatives()
    assert len(accelerated(swin_backbone.accelerate(model))) == 8
    calls.clear()
    assert_close(derivatives(), expected)
    assert len(calls) == 8


def test_a_dry_run_and_a_second_call_change_nothing():
    model = build('mmdet')
    assert swin_backbone.accelerate(model, dry_run=True) is model
    assert not accelerated(model)
    ours = own()
    attributes = [{*vars(module)} for module in ours.modules()]
    swin_backbone.accelerate(ours, precision='int8', dry_run=True)
    assert attributes == [{*vars(module)} for module in ours.modules()]
    types = [type(one) for one in swin_backbone.accelerate(model).modules()]
    assert types == [type(one) for one in swin_backbone.accelerate(model).modules()]


@pytest.mark.parametrize(
    ('args', 'kwargs', 'problem'),
    [
        (((4, 4), 1), {}, 'positional arguments'),
        (((4, 4),), dict(mask=None), "unexpected keyword argument 'mask'"),
        (((4, 4),), dict(hw_shape=(4, 4)), "multiple values for argument 'hw_shape'"),
        ((), {}, "missing 1 required positional argument: 'hw_shape'"),
    ],
)
@torch.no_grad()
def test_a_wrong_call_of_a_layer_raises_the_error_of_the_layer(args, kwargs, problem):
    model = swin_backbone.accelerate(build('mmdet', eval=True))
    block, x = model.stages[0].blocks[0], torch.randn(1, 16, 16)
    with pytest.raises(TypeError, match=problem):
        block(x, *args, **kwargs)
    assert torch.equal(block(x, (4, 4)), block(x=x, hw_shape=(4, 4)))


@pytest.mark.parametrize('change', [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_accelerated_and_have_their_own_weights(change, calls):
    model = swin_backbone.accelerate(build('mmdet', eval=True))
    twin = change(model)
    for parameter in twin.parameters():
        parameter.data.mul_(0.5)
    expected = results(swin_backbone.restore(copy.deepcopy(twin)), X)
    calls.clear()
    assert_close(results(twin, X), expected)
    assert len(calls) == 4
    model.load_state_dict(twin.state_dict())
    assert_close(results(model, X), expected)


def test_hooks_inside_dropout_and_other_modules_are_obeyed(calls):
    model = swin_backbone.accelerate(build('mmdet', eval=True))
    calls.clear()
    seen = []
    block = model.stages[0].blocks[0]
    handles = [block.register_forward_hook(lambda *_: seen.append('block'))]
    model(X)
    assert (len(calls), seen) == (4, ['block'])
    handles.append(block.norm1.register_forward_hook(lambda *_: seen.append('norm')))
    model(X)
    assert (len(calls), seen) == (7, ['block', 'norm', 'block'])
    model.stages[1].blocks[0].ffn.layers[0][1] = nn.ReLU()
    model(X)
    assert len(calls) == 9
    model.stages[1].blocks[1].attn.w_msa.attn_drop.p = 0.5
    model.train()
    model(X)
    assert len(calls) == 10


@pytest.mark.parametrize(
    'change',
    [
        lambda model: model.stages[0].blocks[0].ffn.layers[0].__setitem__(1, nn.GELU('tanh')),
        lambda model: setattr(model.stages[0].downsample.reduction, 'bias', nn.Parameter(torch.linspace(-1, 1, 32))),
        lambda model: setattr(model.patch_embed.projection, 'dilation', (2, 2)),
        lambda model: setattr(model.stages[0].blocks[1].ffn, 'add_identity', False),
        lambda model: setattr(model.stages[0].blocks[1].attn.w_msa, 'scale', 0.9),
        lambda model: setattr(model.stages[0].blocks[1].norm2, 'eps', 0.5),
    ],
)
def test_a_layer_that_changes_afterwards_computes_as_changed(change):
    model = swin_backbone.accelerate(build('mmdet', eval=True))
    change(model)
    assert_close(model(X), swin_backbone.restore(copy.deepcopy(model))(X))


@pytest.mark.parametrize('name', ['WindowMSA', 'ShiftWindowMSA', 'SwinBlock', 'FFN', 'PatchMerging'])
def test_a_class_that_is_patched_afterwards_computes_as_patched(name, monkeypatch):
    model = build('mmdet', eval=True)
    original = copy.deepcopy(model)
    swin_backbone.accelerate(model)
    kind = next(type(module) for module in original.modules() if type(module).__name__ == name)
    forward = kind.forward

    def patched(self, *args, **kwargs):
        y = forward(self, *args, **kwargs)
        return (1.5 * y[0], *y[1:]) if isinstance(y, tuple) else 1.5 * y

    before = results(model, X)
    monkeypatch.setattr(kind, 'forward', patched)
    after = results(model, X)
    assert_close(after, results(original, X))
    assert not all(torch.allclose(*pair) for pair in zip(after, before))


@pytest.mark.parametrize(
    'change',
    [
        lambda block: block.ffn.layers[0].__setitem__(1, nn.GELU('tanh')),
        lambda block: setattr(block.attn.w_msa, 'scale', nn.Parameter(torch.ones(1))),
    ],
)
def test_a_block_that_computes_otherwise_stays(change):
    model = build('mmdet')
    change(model.stages[0].blocks[0])
    assert 'stages.0.blocks.0' not in accelerated(swin_backbone.accelerate(model))
    assert 'stages.0.blocks.1' in accelerated(model)


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (lambda y: 2 * y, r'The results differ by \d'),
        (lambda y: (y, 'attention'), r'The output is .*, and the original returns TreeSpec\(tuple'),  # as in EsViT
    ],
)
def test_a_subclass_with_another_forward_fails_its_trial(change, reason):
    model = build('mmdet')
    block = model.stages[0].blocks[0]

    class Changed(type(block)):
        def forward(self, x, hw_shape):
            return change(super().forward(x, hw_shape))

    block.__class__ = Changed
    lines = swap.accelerate_swin(model)
    assert any(re.search(f'1 x block: unchanged: {reason}', line) for line in lines)
    assert len(accelerated(model)) == 7


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_dtype_stay_and_get_an_advice(dtype):
    model = build('mmdet', eval=True).to(dtype)
    lines = swap.accelerate_swin(model)
    assert len(lines) == 4  # embedding, blocks, merging, norms
    for line in lines:
        assert 'float32' in line
        assert (dtype is torch.float64) or line.endswith('; autocast computes in half precision with float32 weights.')
    assert not accelerated(model)


@pytest.mark.parametrize('mode', [torch.inference_mode, torch.no_grad, lambda: torch.autocast('cpu', torch.bfloat16)])
def test_a_model_is_accelerated_in_every_mode(mode):
    model = build('mmdet', eval=True)
    with mode():
        assert len(accelerated(swin_backbone.accelerate(model))) == 8


@pytest.mark.parametrize('with_embedding', [False, True])
@torch.no_grad()
def test_autocast_rounds_outputs_alone(with_embedding):
    """Between the layers maps are float32: no block converts, and the results are nearer to float32."""
    model = build('mmdet', eval=True, use_abs_pos_embed=with_embedding, pretrain_img_size=64)
    x = torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64).sin()
    truth = model(x)
    with torch.autocast('cpu', torch.bfloat16):
        original, ours = model(x), swin_backbone.accelerate(model)(x)
    for a, b, true in zip(ours, original, truth):
        assert a.dtype == b.dtype
        assert (a - true).norm() < (b - true).norm()
    assert original[0].dtype == (torch.float32 if with_embedding else torch.bfloat16)
    assert original[1].dtype == torch.bfloat16


def test_a_layer_whose_class_another_library_changes_is_restored():
    model = build('mmdet', eval=True)
    expected = model(X)
    block = swin_backbone.accelerate(model).stages[0].blocks[0]
    block.__class__ = type('Wrapped', (type(block),), {})  # like fully_shard of torch
    assert_close(swin_backbone.restore(model)(X), expected)
    assert not accelerated(model)


def test_torch_compile_keeps_the_library_and_a_trace_has_the_original():
    model = swin_backbone.accelerate(build('mmdet', eval=True, depths=(1, 1)))
    expected = swin_backbone.restore(copy.deepcopy(model))(X)
    compiled, graphs = record_graphs(model, fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(X), expected)
    assert [layers_in(one.graph) for one in graphs] == [dict(block=2, project=2, normalise_output=2)]
    assert_close(torch.jit.trace(model, X, check_trace=False)(X), expected)


def test_the_hook_builds_from_a_config_by_both_names():
    HOOKS = pytest.importorskip('mmengine.registry', reason='mmengine is not installed').HOOKS

    for name in ('AccelerateHook', 'swin_backbone.AccelerateHook'):
        hook = HOOKS.build(dict(type=name))
        runner = type('Runner', (), {'model': build('mmdet')})
        hook.before_run(runner)
        assert len(accelerated(runner.model)) == 8


def test_all_blocks_of_a_swin_decide_what_a_step_stores(monkeypatch):
    stages = []
    monkeypatch.setattr(blocks, 'saves_activations', lambda dtype, channels, own: stages.append(own) or False)
    swin_backbone.accelerate(build('mmdet'))(X)
    assert set(stages[-4:]) == {((16, 2), (32, 2))}


def test_no_module_is_refused():
    with pytest.raises(TypeError, match=r'model takes a torch\.nn\.Module .*, got None'):
        swin_backbone.accelerate(None)
