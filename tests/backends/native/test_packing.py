"""A backbone computes with the current weights, after writes of any kind."""

import copy
import ctypes
import io
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.backends.native.memory import checksum, made_from
from swin_backbone.backends.weight_cache import WeightCache

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


def one(weight):
    """Return a random number of a weight, as a view."""
    return weight.view(-1)[torch.randint(weight.numel(), ()) :][:1]


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
    one(weight.data).add_(1)


def data_of_outliers(weight):
    weight.data.clamp_(-weight.abs().max() * 0.7, weight.abs().max() * 0.7)


def data_multiplied(weight):
    weight.data.mul_(1.5)


def data_of_a_row(weight):
    weight.data[torch.randint(len(weight), ())] += 0.5


def data_negated(weight):
    weight.data.neg_()


def data_of_two_signs(weight):
    flat = weight.data.view(-1)
    flat[:2].neg_()
    flat[-2:].neg_()


def data_in_another_order(weight):
    weight.data.copy_(weight.data.flip(0))


def data_of_two_numbers_exchanged(weight):
    flat = weight.data.view(-1)
    flat[[0, 64]] = flat[[64, 0]]
    flat[[1, -1]] = flat[[-1, 1]]


def data_replaced(weight):
    weight.data = another(weight)


def data_in_other_strides(weight):
    weight.data = another(weight).movedim(0, 1).contiguous().movedim(1, 0)


def data_copied_from_a_mean(weight):
    """Write like mmengine's EMAHook."""
    mean = weight.detach().clone().mul_(0.3)
    mean.lerp_(weight.data, 0.1)
    kept = weight.data.clone()
    weight.data.copy_(mean)
    mean.copy_(kept)


def data_lerped(weight):
    weight.data.lerp_(torch.randn_like(weight), 0.05)


def numpy_of_one_number(weight):
    weight.detach().numpy().reshape(-1)[7] += 1


def numpy_of_all_numbers(weight):
    weight.detach().numpy()[...] *= 2


def a_detached_copy(weight):
    one(weight.detach()).add_(1)


def dlpack(weight):
    one(torch.from_dlpack(weight.detach())).add_(1)


def memory_itself(weight):
    new = another(weight)
    ctypes.memmove(weight.data_ptr(), new.data_ptr(), new.nbytes)


def storage_copied(weight):
    weight.untyped_storage().copy_(another(weight).untyped_storage())


def storage_of_one_byte(weight):
    weight.untyped_storage()[weight.nbytes // 2 + 3] ^= 0x81


def set_to_another(weight):
    weight.set_(another(weight))


def set_to_a_part_of_another(weight):
    storage = torch.cat([torch.zeros(3), another(weight).flatten()])
    weight.set_(storage.untyped_storage(), 3, weight.shape)


def swapped(weight):
    torch.utils.swap_tensors(weight, nn.Parameter(another(weight)))


def written_in_inference_mode(weight):
    with torch.inference_mode():
        one(weight).add_(1)


def written_by_a_thread(weight):
    writer = threading.Thread(target=data_of_one_number, args=(weight,))
    writer.start()
    writer.join()


def changed_and_back(weight):
    kept = weight.detach().clone()
    weight.data.zero_()
    weight.data.copy_(kept)
    data_of_one_number(weight)


def written_by_foreach(weight):
    torch._foreach_mul_([weight.data], 1.5)


def initialised(weight):
    nn.init.trunc_normal_(weight.data, std=0.05)


WRITES = [
    *(data_of_one_number, data_of_outliers, data_multiplied, data_of_a_row, data_negated, data_of_two_signs),
    *(data_in_another_order, data_of_two_numbers_exchanged, data_replaced, data_in_other_strides),
    *(data_copied_from_a_mean, data_lerped, numpy_of_one_number, numpy_of_all_numbers, a_detached_copy, dlpack),
    *(memory_itself, storage_copied, storage_of_one_byte, set_to_another, set_to_a_part_of_another, swapped),
    *(written_in_inference_mode, written_by_a_thread, changed_and_back, written_by_foreach, initialised),
]


def by_optimizer(kind, **arguments):
    """Return a step of an optimizer, with gradients of zero except a few numbers."""

    def change(model):
        for weight in packed_weights(model):
            weight.grad = torch.zeros_like(weight)
            one(weight.grad).fill_(1)
        # A step of zero gradients writes nothing: neither decay nor momentum
        kind(packed_weights(model), lr=0.5, **arguments).step()

    change.__name__ = '_'.join([kind.__name__, *arguments])
    return change


def parameters_replaced(model):
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.weight = nn.Parameter(another(module.weight))


def parameters_registered(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weight = another(module.weight)
            del module.weight
            module.register_parameter('weight', nn.Parameter(weight))


def other_values(model):
    return {name: value * 1.5 if value.is_floating_point() else value for name, value in model.state_dict().items()}


def loaded(model):
    model.load_state_dict(other_values(model))


def loaded_by_assignment(model):
    model.load_state_dict(other_values(model), assign=True)


def written_as_one_vector(model):
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector * 1.5, model.parameters())


def rounded(model):
    model.bfloat16().float()


def averaged(model):
    mean = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda mean, value, _: 0.5 * mean)
    mean.update_parameters(model)
    mean.update_parameters(model)
    for weight, other in zip(model.parameters(), mean.parameters()):
        weight.data.copy_(other.data)


CHANGES = [
    *map(each, WRITES),
    *(by_optimizer(kind, fused=True) for kind in (torch.optim.SGD, torch.optim.Adagrad)),
    *(by_optimizer(kind, fused=True) for kind in (torch.optim.Adam, torch.optim.AdamW)),
    *(by_optimizer(kind, foreach=True) for kind in (torch.optim.SGD, torch.optim.AdamW)),
    *(parameters_replaced, parameters_registered, loaded, loaded_by_assignment, written_as_one_vector),
    *(rounded, averaged),
]


@pytest.fixture
def by_torch():
    """Return a function to call `run` without the operators."""

    def call(run):
        with torch.backends.mkldnn.flags(enabled=False):
            return run()

    return call


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


@pytest.mark.parametrize('change', CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize('kind', BACKBONES)
def test_every_change_is_seen(kind, change, by_torch, record_fault):
    model, x = backbone(kind), torch.randn(1, 3, 36, 40)
    before = outputs(model, x)
    change(model)
    after = outputs(model, x)
    assert differ(after, before) > 3e-4
    assert differ(after, by_torch(lambda: outputs(model, x))) < 1e-4
    record_fault('unseen_writes')


def written_in_a_copy(model):
    other = copy.deepcopy(model)
    each(data_of_one_number)(other)
    return other


def written_in_a_pickle(model):
    other = pickle.loads(pickle.dumps(model))
    each(numpy_of_one_number)(other)
    return other


def written_in_a_saved_one(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    each(memory_itself)(other)
    return other


def written_in_a_shallow_copy(model):
    """Return a shallow copy of the model, with new weights in the patch embedding."""
    other = copy.copy(model)
    other.__dict__['_modules'] = {name: copy.copy(module) for name, module in model._modules.items()}
    other.patch_embed.__dict__['_modules'] = dict(other.patch_embed._modules)
    other.patch_embed.projection = nn.Conv2d(3, 32, 4, stride=4)
    return other


@pytest.mark.parametrize(
    'change', [written_in_a_copy, written_in_a_pickle, written_in_a_saved_one, written_in_a_shallow_copy]
)
def test_copies_do_not_share(change, by_torch, record_fault):
    model, x = backbone(), torch.randn(1, 3, 36, 40)
    before = outputs(model, x)
    other = change(model)
    for _ in range(2):  # in turn: the models must not share packed weights
        after = outputs(other, x)
        assert differ(after, before) > 3e-4
        assert differ(after, by_torch(lambda: outputs(other, x))) < 1e-4
        assert differ(outputs(model, x), before) == 0
    record_fault('unseen_writes')


@pytest.mark.parametrize('kind', BACKBONES)
@torch.no_grad()
def test_clones_of_a_functional_call_are_each_its_own(kind, by_torch, record_fault):
    """A new clone has the id and the address of a deleted clone."""
    model, x = backbone(kind), torch.randn(1, 3, 36, 40)
    names = [name for name, weight in model.named_parameters() if any(weight is w for w in packed_weights(model))]
    for name in names:
        results = []
        for number in range(4):
            clone = model.get_parameter(name).detach().clone()
            clone.view(-1)[number * 100] += 1
            results.append(functional_call(model, {name: clone}, (x,)))
            assert len(results) == 1 or differ(results[-1], results[-2]) > 3e-4
            del clone
        for number, ours in enumerate(results):
            clone = model.get_parameter(name).detach().clone()
            clone.view(-1)[number * 100] += 1
            assert differ(ours, by_torch(lambda: functional_call(model, {name: clone}, (x,)))) < 1e-4  # noqa: B023
    record_fault('unseen_writes', 4 * len(names))


class Held(torch.Tensor):
    """A tensor without memory, around a second tensor, like tensors of quantization and distributed training."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(), dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function, _, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda one: one.held, (args, kwargs or {}))
        return function(*args, **kwargs)


def negated(x):
    return torch._neg_view(-x)


def at_an_odd_address(x):
    return torch.frombuffer(bytearray(1) + x.detach().numpy().tobytes(), dtype=x.dtype, offset=1).view(x.shape)


ELSEWHERE = {
    'negated when read': negated,
    'at an odd address': at_an_odd_address,
    'the imaginary part of a conjugate': lambda x: torch.complex(x, -x).conj().imag,
    'held by a subclass': Held,
}


@pytest.mark.parametrize('elsewhere', ELSEWHERE)
@pytest.mark.parametrize('kind', BACKBONES)
@torch.no_grad()
def test_numbers_that_are_not_in_a_tensors_own_memory(kind, elsewhere, record_fault):
    """Weights without memory, or with a shared memory: for every number of dimensions alone, and the image."""
    model, x = backbone(kind), torch.randn(1, 3, 36, 40)
    expected = model(x)
    assert differ(model(ELSEWHERE[elsewhere](x)), expected) < 1e-5  # torch computes the layers
    for dim in (1, 2, 4):  # norms and biases, linear layers, the patch embedding
        weights = {name: value for name, value in model.named_parameters() if value.dim() == dim}
        ours = functional_call(model, {name: ELSEWHERE[elsewhere](value) for name, value in weights.items()}, (x,))
        assert differ(ours, expected) < 1e-5
        record_fault('unseen_writes')
        for sign in (-1, 1):  # the two signs share bytes
            signed = {name: (sign * value).neg() for name, value in weights.items()}
            lazy = {name: torch._neg_view(sign * value) for name, value in weights.items()}
            assert differ(functional_call(model, lazy, (x,)), functional_call(model, signed, (x,))) < 1e-5


@pytest.mark.parametrize('kind', BACKBONES)
def test_a_gradient_that_is_negated_when_it_is_read(kind):
    model, x = backbone(kind), torch.randn(1, 3, 36, 40)
    outputs = model(x)
    of_outputs = [torch.randn_like(y) for y in outputs]
    weights = packed_weights(model)
    expected = torch.autograd.grad(outputs, weights, of_outputs)
    for ours, truth in zip(torch.autograd.grad(model(x), weights, list(map(negated, of_outputs))), expected):
        torch.testing.assert_close(ours, truth)


def test_a_file_that_another_mapping_writes(tmp_path, by_torch, record_fault):
    model, x = backbone(), torch.randn(1, 3, 36, 40)
    weight = model.stages[0].blocks[0].ffn.layers[1].weight
    file, count = str(tmp_path / 'weight'), weight.numel()
    mapped, again = (torch.from_file(file, shared=True, size=count) for _ in range(2))
    mapped.copy_(weight.detach().flatten())
    weight.data = mapped.view_as(weight)
    before = outputs(model, x)
    again.mul_(2)
    after = outputs(model, x)
    assert differ(after, before) > 3e-4
    assert differ(after, by_torch(lambda: outputs(model, x))) < 1e-4
    record_fault('unseen_writes')


def test_weights_of_inference_mode(by_torch, record_fault):
    """Weights of inference mode have no version. Only inference mode may write the weights."""
    x = torch.randn(1, 3, 36, 40)
    with torch.inference_mode():
        model = backbone()
        before = model(x)
        each(data_of_one_number)(model)
        after = model(x)
        assert differ(after, before) > 3e-4
        assert differ(after, by_torch(lambda: model(x))) < 1e-4
    record_fault('unseen_writes')


def test_a_write_while_weights_are_packed_is_not_kept(record_fault):
    """A thread may replace weights by mean weights for an evaluation, and write the old weights back."""
    cache, weight = WeightCache(), torch.randn(96, 32)
    kept = weight.clone()
    made_from([weight], (), lambda: [weight.zero_().clone()], cache)
    weight.copy_(kept)
    (copy_of_weight,) = made_from([weight], (), lambda: [weight.clone()], cache)
    assert torch.equal(copy_of_weight, kept)
    record_fault('unseen_writes')


@torch.no_grad()
def test_two_threads_with_a_model_each(by_torch, record_fault):
    models, x = [backbone() for _ in range(2)], torch.randn(1, 3, 36, 40)
    for model in models:
        model(x)
    wrong = []

    def change_and_run(model):
        for _ in range(10):
            each(data_of_one_number)(model)
            maps = model(x)
            wrong.append(differ(maps, copy.deepcopy(model)(x)))  # a copy without packed weights

    threads = [threading.Thread(target=change_and_run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 20
    record_fault('unseen_writes', 20)


def test_a_checksum_sees_every_bit_and_every_exchange():
    for count in (1, 2, 31, 64, 100, 70_000):  # whole words and chunks, and rests
        weight = torch.randn(count)
        seen = {checksum([weight])}
        bits = weight.view(torch.int32)
        for at in {0, 1, count // 2, count - 2, count - 1} & set(range(count)):
            for bit in range(32):
                mask = 1 << bit if bit < 31 else -(1 << 31)
                bits[at] ^= mask
                seen.add(checksum([weight]))
                bits[at] ^= mask
        assert len(seen) == 1 + 32 * len({0, 1, count // 2, count - 2, count - 1} & set(range(count)))
        assert checksum([weight]) in seen
    weight = torch.randn(200_000)
    others = [weight.neg(), weight.flip(0), *(weight.roll(by) for by in (1, 2, 32, 64, 1 << 16, 1 << 17))]
    assert len({checksum([w]) for w in (weight, *others)}) == 1 + len(others)


def test_a_checksum_is_of_values_and_not_of_threads_or_strides():
    weight = torch.randn(300, 700)
    first, threads = checksum([weight, weight[0]]), torch.get_num_threads()
    assert checksum([weight.t().contiguous().t(), weight[0]]) == first
    assert checksum([weight[0], weight]) != first
    assert checksum([torch.cat([weight.flatten(), weight[0]])]) != first
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert checksum([weight, weight[0]]) == first
    finally:
        torch.set_num_threads(threads)
    assert checksum([torch.zeros(3)]) != checksum([torch.zeros(4)])


@torch.no_grad()
def test_weights_are_packed_once_and_not_copied():
    model, x = backbone(), torch.randn(1, 3, 64, 64)
    model(x)
    block = model.stages[0].blocks[0]
    made = block.cache.made[1]
    model(x)
    assert block.cache.made[1] is made
    weights = (block.attn.w_msa.qkv, block.attn.w_msa.proj, block.ffn.layers[0][0], block.ffn.layers[1])
    assert sum(panels.nbytes for panels in made) == sum(layer.weight.nbytes for layer in weights)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.stages[0].blocks[0].cache.made is None
        assert torch.equal(other(x)[-1], model(x)[-1])
