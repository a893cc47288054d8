"""Replaced layers, hooks, and torch's changes of modules: the library computes correctly, or calls the module."""

import copy

import pytest
import torch
from helpers.kernels.errors import relative_error
from helpers.models.small_models import randomised
from helpers.versions import needs_torch
from torch import nn
from torch.utils._pytree import tree_leaves

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.models.layers.block import DropPath

BACKBONES = [SwinBackbone, SwinV2Backbone]


def make(backbone, **arguments):
    torch.manual_seed(0)
    return randomised(kind=backbone, drop_path_rate=0.0, **arguments)


def assert_same(model, expected, x, tolerance=1e-4):
    with torch.no_grad():
        for output, other in zip(model(x), expected):
            torch.testing.assert_close(output, other, rtol=tolerance, atol=tolerance)


def maps(model, x):
    with torch.no_grad():
        return [output.clone() for output in model(x)]


@needs_torch('2.5', 'set_submodule')
@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('train', [False, True])
def test_identities_for_dropout_and_drop_path(backbone, train):
    model, x = make(backbone), torch.randn(1, 3, 40, 50)
    expected = maps(model, x)
    for name, module in list(model.named_modules()):
        if isinstance(module, (nn.Dropout, DropPath)):
            model.set_submodule(name, nn.Identity())
    model.train(train)
    assert_same(model, expected, x)
    sum(output.sum() for output in model(x)).backward()


def take_out_a_head(block):
    """Remove the first head of a block's attention, like structured pruning."""
    attention = block.attn.w_msa
    C, h = attention.proj.weight.shape[0], attention.num_heads
    d = C // h
    kept = torch.arange(C).view(h, d)[1:].flatten()
    of_qkv = torch.cat([kept, C + kept, 2 * C + kept])
    parts = [(attention.qkv, 'weight', of_qkv), (attention.proj, 'weight', (slice(None), kept))]
    if hasattr(attention, 'logit_scale'):
        parts += [(attention, 'logit_scale', slice(1, None)), (attention.cpb_mlp[2], 'weight', slice(1, None))]
        parts += [(attention, name, kept) for name in ('q_bias', 'v_bias')]
    else:
        parts += [(attention, 'relative_position_bias_table', (slice(None), slice(1, None)))]
        parts += [(attention.qkv, 'bias', of_qkv)]
    for owner, name, index in parts:
        setattr(owner, name, nn.Parameter(getattr(owner, name)[index].detach()))
    attention.num_heads = h - 1


@pytest.mark.parametrize('backbone', BACKBONES)
def test_a_head_that_was_taken_out(backbone):
    model, x = make(backbone), torch.randn(1, 3, 40, 50)
    block = model.stages[1].blocks[1]
    silent = copy.deepcopy(model)
    with torch.no_grad():  # the head's values do not reach the output
        silent.stages[1].blocks[1].attn.w_msa.proj.weight[:, :16] = 0
    take_out_a_head(block)
    assert_same(model, maps(silent, x), x)
    kept, whole = (one.stages[1].blocks[1].attn.w_msa.qkv for one in (model, silent))
    for one in (model, silent):
        sum(output.square().mean() for output in one(x)).backward()
    assert relative_error(kept.weight.grad[:48], whole.weight.grad[16:64]) < 1e-4
    model.backend = 'native'
    with pytest.raises(ValueError, match=r"'native' cannot compute this: The compiled library takes .*, not"):
        model(x)


@pytest.mark.parametrize('hidden', [77, 120])
@pytest.mark.parametrize('backbone', BACKBONES)
def test_hidden_channels_that_were_pruned(backbone, hidden):
    model, x = make(backbone).train(), torch.randn(1, 3, 40, 50)
    for fc1, fc2 in ((block.ffn.layers[0][0], block.ffn.layers[1]) for block in model.stages[0].blocks):
        fc1.weight, fc1.bias = (nn.Parameter(w[:hidden].detach()) for w in (fc1.weight, fc1.bias))
        fc2.weight = nn.Parameter(fc2.weight[:, :hidden].detach())
    results = []
    for backend in ('auto', 'torch'):
        model.backend = backend
        maps = model(x)
        results.append([*maps, *torch.autograd.grad(sum(y.square().mean() for y in maps), list(model.parameters()))])
    assert relative_error(*results) < 1e-4
    model.backend = 'native'
    if hidden % 8:
        with pytest.raises(ValueError, match=rf'takes 8, 16 .* hidden channels, not {hidden}\.'):
            model(x)
    else:
        model(x)


@pytest.mark.parametrize(
    ('backbone', 'register'),
    [*[(kind, 'register_forward_hook') for kind in BACKBONES], (SwinBackbone, 'register_forward_pre_hook')],
)
@torch.no_grad()
def test_a_tensor_that_a_hook_kept_stays(backbone, register):
    """Grad-CAM, distillation and extraction of features keep outputs or inputs of a module, and read them later."""
    model, x = make(backbone, backend='torch'), torch.randn(1, 3, 40, 50)
    modules = dict(model.named_modules())

    def hook(name):
        def tensors(_, inputs, *output):
            found = [one for one in tree_leaves(output or inputs) if isinstance(one, torch.Tensor)]
            kept[name] += [one.clone() for one in found] if model.backend == 'torch' else found

        kept[name] = []
        return getattr(modules[name], register)(tensors)

    truth = kept = {}
    handles, expected = [hook(name) for name in modules], maps(model, x)
    for handle in handles:
        handle.remove()
    model.backend, kept = 'auto', {}
    for name in modules:
        handle, outputs = hook(name), model(x)
        handle.remove()
        assert len(kept[name]) == len(truth[name]), name
        for one, other in zip([*outputs, *kept[name]], [*expected, *truth[name]]):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize('backbone', BACKBONES)
@torch.no_grad()
def test_the_users_own_tokens_stay(backbone):
    model = make(backbone)
    tokens_BHWC = torch.randn(1, 8, 8, 32)
    before = tokens_BHWC.clone()
    for _ in range(2):
        model(torch.randn(1, 3, 32, 32), hide=lambda _: tokens_BHWC)
    assert torch.equal(tokens_BHWC, before)


@pytest.mark.parametrize('name', ['drop_path.drop_prob', 'attn.w_msa.scale', 'norm2.eps', 'attn.w_msa.attn_drop_rate'])
@pytest.mark.parametrize('backbone', BACKBONES)
def test_an_attribute_that_is_set_late_counts(backbone, name):
    model, x = make(backbone).train(), torch.randn(1, 3, 40, 50)
    owner, _, attribute = name.rpartition('.')
    maps(model, x)
    setattr(model.stages[0].blocks[1].get_submodule(owner), attribute, 0.3)
    found = []
    for model.backend in ('auto', 'torch'):
        torch.manual_seed(1)
        found.append(maps(model, x))
    assert relative_error(*found) < 1e-5


@pytest.mark.parametrize('small_map', ['pad', 'shrink'])
@pytest.mark.parametrize('backbone', BACKBONES)
@torch.no_grad()
def test_a_list_counts_as_a_window(backbone, small_map):
    model, x = make(backbone), torch.randn(1, 3, 40, 50)
    for block in model.stages[0].blocks:
        block.small_map = small_map
    expected = maps(model, x)
    for block in model.stages[0].blocks:
        block.window_size, block.shift = list(block.window_size), list(block.shift)
        if hasattr(block, 'attn'):
            block.attn.w_msa.window_size = [*block.attn.w_msa.window_size]
    for model.backend in ('auto', 'torch'):
        assert relative_error(maps(model, x), expected) < 1e-5


@pytest.mark.parametrize('backbone', BACKBONES)
def test_full_backward_hooks_on_all_modules(backbone):
    model, seen = make(backbone).train(), set()
    for name, module in model.named_modules():
        module.register_full_backward_hook(lambda module, grad_in, grad_out, name=name: seen.add(name))
    sum(output.sum() for output in model(torch.randn(1, 3, 40, 50))).backward()
    assert any(name.endswith('qkv') for name in seen)


@pytest.mark.parametrize('backbone', BACKBONES)
def test_dynamic_quantization(backbone):
    model, x = make(backbone), torch.randn(1, 3, 40, 50)
    expected = maps(model, x)
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    for output, other in zip(maps(quantized, x), expected):
        assert relative_error([output], [other]) < 3e-2


@pytest.mark.parametrize('backbone', BACKBONES)
def test_torch_func(backbone):
    sizes = dict(depths=(2,), num_heads=(2,), out_indices=(0,))
    model, x = make(backbone, **sizes).double(), torch.randn(2, 3, 18, 22).double()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,))[0].square().mean()

    model.zero_grad()
    loss(dict(model.named_parameters()), x).backward()
    gradients = torch.func.grad(loss)(weights, x)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)

    of_each = torch.func.vmap(torch.func.grad(loss, argnums=1), in_dims=(None, 0))(weights, x[:, None])
    for sample, gradient in zip(x, of_each):
        sample = sample[None].clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(weights, sample), sample)
        torch.testing.assert_close(gradient, expected)

    def mean(x):
        return model(x)[0].mean((0, 2, 3))

    _, tangent = torch.func.jvp(mean, (x,), (torch.ones_like(x),))
    jacobian = torch.func.jacrev(mean)(x)
    torch.testing.assert_close(jacobian.sum((1, 2, 3, 4)), tangent)
    with torch.autograd.forward_ad.dual_level():
        dual = mean(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, tangent)


@pytest.mark.parametrize('backbone', BACKBONES)
def test_the_tracing_onnx_exporter(backbone, tmp_path):
    pytest.importorskip('onnx', reason='onnx is not installed')
    model, x = make(backbone), torch.randn(1, 3, 40, 50)
    torch.onnx.export(model, (x,), str(tmp_path / 'model.onnx'), dynamo=False)
    runtime = pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')
    session = runtime.InferenceSession(str(tmp_path / 'model.onnx'))
    outputs = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for output, expected in zip(outputs, maps(model, x)):
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-4)
