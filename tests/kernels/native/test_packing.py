"""A backbone computes with the current weights, after writes of any kind."""

import copy
import ctypes
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from helpers.versions import needs_torch
from torch import nn
from torch.func import functional_call

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.kernels.native.memory import checksum, find_cache, make_once

BACKBONES = SwinBackbone, SwinV2Backbone


def backbone(kind=SwinBackbone):
    """Return a model of every layer with packed weights."""
    model = kind(embed_dims=32, depths=(1, 1), num_heads=(1, 2), window_size=4, strides=(4, 2), out_indices=(0, 1))
    for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm)):
        nn.init.normal_(norm.weight, mean=1, std=0.1)  # some norms of V2 begin at zero, and hide the layers before
    return model.eval()


def packed_weights(model):
    """Return the packed weights: of the linear layers and of the patch embedding."""
    layers = [layer for name, layer in model.named_modules() if 'cpb' not in name]
    return [layer.weight for layer in layers if isinstance(layer, (nn.Linear, nn.Conv2d))]


def another(weight):
    """Return slightly different numbers."""
    return weight.detach() + 0.05 * torch.randn_like(weight)


def each(write):
    """Return a change of a model: `write` changes every packed weight, without gradients."""

    def change(model):
        with torch.no_grad():
            for weight in packed_weights(model):
                write(weight)

    change.__name__ = write.__name__
    return change


def data_of_one_number(weight):
    weight.data.view(-1)[torch.randint(weight.numel(), ())] += 1


def data_in_other_strides(weight):
    weight.data = another(weight).movedim(0, 1).contiguous().movedim(1, 0)


def memory_itself(weight):
    new = another(weight)
    ctypes.memmove(weight.data_ptr(), new.data_ptr(), new.nbytes)


def swapped(weight):
    torch.utils.swap_tensors(weight, nn.Parameter(another(weight)))


def by_fused_optimizer(model):
    for weight in packed_weights(model):
        weight.grad = torch.zeros_like(weight)
        weight.grad.view(-1)[7] = 1
    torch.optim.AdamW(packed_weights(model), lr=0.5, fused=True).step()


def loaded_by_assignment(model):
    values = {name: value * 1.5 if value.is_floating_point() else value for name, value in model.state_dict().items()}
    model.load_state_dict(values, assign=True)


WRITES = data_of_one_number, data_in_other_strides, memory_itself
CHANGES = [*map(each, WRITES), by_fused_optimizer, loaded_by_assignment]
SWAPPED = pytest.param(each(swapped), marks=needs_torch('2.5', 'swap_tensors after a forward'), id='swapped')


def by_torch(run):
    """Return `run()` without the operators."""
    with torch.backends.mkldnn.flags(enabled=False):
        return run()


def outputs(model, x):
    """Return maps without and with gradients, and the image's gradient, from transposed weights."""
    with torch.no_grad():
        alone = model(x)
    x = x.detach().requires_grad_()
    maps = model(x)
    (gradient,) = torch.autograd.grad(sum(y.sin().sum() for y in maps), x)
    return *alone, *maps, gradient


def differ(ours, theirs):
    """How far outputs are apart, in the size of theirs."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs))


def assert_seen(run, before):
    """Check that `run()` has other results than before, and those of torch."""
    after = run()
    assert differ(after, before) > 3e-4
    assert differ(after, by_torch(run)) < 1e-4


@pytest.mark.parametrize('change', [*CHANGES, SWAPPED], ids=lambda change: change.__name__)
@pytest.mark.parametrize('kind', BACKBONES)
def test_every_change_is_seen(kind, change, record_fault):
    model, x = backbone(kind), torch.randn(1, 3, 36, 40)
    before = outputs(model, x)
    change(model)
    assert_seen(lambda: outputs(model, x), before)
    record_fault('unseen_writes')


def written_in_a_copy(model):
    other = copy.deepcopy(model)
    each(data_of_one_number)(other)
    return other


def written_in_a_shallow_copy(model):
    """Return a shallow copy of the model, with new weights in the patch embedding."""
    other = copy.copy(model)
    other.__dict__['_modules'] = {name: copy.copy(module) for name, module in model._modules.items()}
    other.patch_embed.__dict__['_modules'] = dict(other.patch_embed._modules)
    other.patch_embed.projection = nn.Conv2d(3, 32, 4, stride=4)
    return other


@pytest.mark.parametrize('change', [written_in_a_copy, written_in_a_shallow_copy])
def test_copies_do_not_share(change, record_fault):
    model, x = backbone(), torch.randn(1, 3, 36, 40)
    before = outputs(model, x)
    other = change(model)
    for _ in range(2):  # in turn: the models must not share packed weights
        assert_seen(lambda: outputs(other, x), before)
        assert differ(outputs(model, x), before) == 0
    record_fault('unseen_writes')


@pytest.mark.parametrize('kind', BACKBONES)
@torch.no_grad()
def test_clones_of_a_functional_call_are_each_its_own(kind, record_fault):
    """A new clone has the id and the address of a deleted clone."""
    model, x = backbone(kind), torch.randn(1, 3, 36, 40)
    names = [name for name, weight in model.named_parameters() if any(weight is w for w in packed_weights(model))]
    for name in names:

        def run(number):
            clone = model.get_parameter(name).detach().clone()  # noqa: B023
            clone.view(-1)[number * 100] += 1
            return functional_call(model, {name: clone}, (x,))  # noqa: B023

        results = [run(number) for number in range(4)]
        for number, ours in enumerate(results):
            assert differ(ours, by_torch(partial(run, number))) < 1e-4
            assert differ(ours, results[number - 1]) > 3e-4
    record_fault('unseen_writes', 4 * len(names))


@pytest.mark.parametrize('kind', BACKBONES)
def test_a_gradient_that_is_negated_when_it_is_read(kind):
    model, x = backbone(kind), torch.randn(1, 3, 36, 40)
    outputs = model(x)
    of_outputs = [torch.randn_like(y) for y in outputs]
    weights = packed_weights(model)
    expected = torch.autograd.grad(outputs, weights, of_outputs)
    for ours, truth in zip(
        torch.autograd.grad(model(x), weights, [torch._neg_view(-grad) for grad in of_outputs]), expected
    ):
        torch.testing.assert_close(ours, truth)


def test_weights_of_inference_mode(record_fault):
    """Weights of inference mode have no version. Only inference mode may write the weights."""
    x = torch.randn(1, 3, 36, 40)
    with torch.inference_mode():
        model = backbone()
        before = model(x)
        each(data_of_one_number)(model)
        assert_seen(lambda: model(x), before)
    record_fault('unseen_writes')


def test_a_write_while_weights_are_packed_is_not_kept(record_fault):
    """A thread may replace weights by mean weights for an evaluation, and write the old weights back."""
    cache, weight = {}, torch.randn(96, 32)
    kept = weight.clone()
    make_once([weight], (), lambda: [weight.zero_().clone()], cache)
    weight.copy_(kept)
    (copy_of_weight,) = make_once([weight], (), lambda: [weight.clone()], cache)
    assert torch.equal(copy_of_weight, kept)
    record_fault('unseen_writes')


@torch.no_grad()
def test_two_threads_with_a_model_each(record_fault):
    models, x = [backbone() for _ in range(2)], torch.randn(1, 3, 36, 40)
    for model in models:
        model(x)
    wrong = []

    def change_and_run(model):
        for _ in range(10):
            each(data_of_one_number)(model)
            maps = model(x)
            wrong.append(differ(maps, copy.deepcopy(model)(x)))  # a copy without packed weights

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(change_and_run, models))
    assert wrong == [0] * 20
    record_fault('unseen_writes', 20)


def test_a_checksum_sees_every_bit_and_every_exchange():
    for count in (1, 2, 31, 64, 100, 70_000):  # whole words and chunks, and rests
        weight = torch.randn(count)
        bits, places = weight.view(torch.int32), {0, 1, count // 2, count - 2, count - 1} & set(range(count))
        seen = {checksum([weight])}
        for at in places:
            for bit in range(32):
                mask = 1 << bit if bit < 31 else -(1 << 31)
                bits[at] ^= mask
                seen.add(checksum([weight]))
                bits[at] ^= mask
        assert len(seen) == 1 + 32 * len(places)
    weight = torch.randn(200_000)
    others = [weight.neg(), weight.flip(0), *(weight.roll(by) for by in (1, 2, 32, 64, 1 << 16, 1 << 17))]
    assert len({checksum([w]) for w in (weight, *others)}) == 1 + len(others)


def test_a_checksum_is_of_values_and_not_of_strides():
    weight = torch.randn(300, 700)
    first = checksum([weight, weight[0]])
    assert checksum([weight.t().contiguous().t(), weight[0]]) == first
    assert checksum([weight[0], weight]) != first
    assert checksum([torch.cat([weight.flatten(), weight[0]])]) != first


@torch.no_grad()
def test_weights_are_packed_once_and_not_copied():
    model, x = backbone(), torch.randn(1, 3, 64, 64)
    model(x)
    block = model.stages[0].blocks[0]
    made = find_cache(block)['packed'][1]
    model(x)
    assert find_cache(block)['packed'][1] is made
    weights = (block.attn.w_msa.qkv, block.attn.w_msa.proj, block.ffn.layers[0][0], block.ffn.layers[1])
    panels, vectors = made.tensors[:4], made.tensors[4:]
    assert sum(one.nbytes for one in panels) == sum(layer.weight.nbytes for layer in weights)
    assert sum(one.numel() for one in vectors if one is not None) == 13 * 32 + 16**2  # biases, norms, position bias
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert find_cache(other.stages[0].blocks[0]) == {}
        assert torch.equal(other(x)[-1], model(x)[-1])


@torch.no_grad()
@pytest.mark.parametrize('kind', BACKBONES)
def test_a_position_bias_is_computed_once(kind, record_fault):
    model, x = backbone(kind), torch.randn(1, 3, 36, 40)
    model(x)
    block = model.stages[0].blocks[0]
    made, before = find_cache(block)['packed'][1], model(x)
    assert find_cache(block)['packed'][1] is made
    for name, weight in block.attn.w_msa.named_parameters():
        if name.startswith(('qkv.', 'proj.')):
            continue
        weight.data.add_(torch.randn_like(weight))
    assert_seen(lambda: model(x), before)
    if kind is SwinV2Backbone:
        block.attn.w_msa.pretrained_window = (9, 9)
        assert differ(model(x), by_torch(lambda: model(x))) < 1e-4
    record_fault('unseen_writes')
