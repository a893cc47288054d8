"""Weights that are cast together."""

import pytest
import torch
from helpers.models.data_parallel import data_parallel
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone import SwinBackbone, SwinV2Backbone, compat
from swin_backbone.backends.triton import trial as backend
from swin_backbone.backends.triton.cast import cast_together

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
needs_kernel = pytest.mark.skipif(
    backend._try(DEVICE, torch.bfloat16, (3, 3), 16, False) is not None, reason='the Triton kernel does not run here'
)


class Copies(TorchDispatchMode):
    """How many times weights were cast."""

    def __init__(self):
        super().__init__()
        self.together, self.alone = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.together += '_foreach_copy_' in str(func)
        self.alone += str(func) == 'aten._to_copy.default' and (kwargs or {}).get('dtype') == torch.bfloat16
        return func(*args, **(kwargs or {}))


def weights():
    layer = nn.Linear(8, 6)
    return layer, [layer.weight, None, layer.bias]


def test_values_and_gradients_are_those_of_single_casts():
    layer, tensors = weights()
    (weight, nothing, bias), x = cast_together(tensors, torch.bfloat16), torch.randn(5, 8, dtype=torch.bfloat16)
    assert nothing is None
    assert torch.equal(weight, layer.weight.bfloat16())
    y = nn.functional.linear(x, weight, bias)
    literal = nn.functional.linear(x, layer.weight.bfloat16(), layer.bias.bfloat16())
    gradients = [torch.autograd.grad(z.float().square().sum(), [layer.weight, layer.bias]) for z in (y, literal)]
    for gradient, expected in zip(*gradients):
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, expected)


def test_what_wants_no_gradient_gets_none():
    layer, tensors = weights()
    layer.weight.requires_grad_(False)
    weight, _, bias = cast_together(tensors, torch.bfloat16)
    (weight.sum() + bias.sum()).backward()
    assert layer.weight.grad is None
    assert torch.equal(layer.bias.grad, torch.ones(6))


@torch.no_grad()
def test_what_changed_without_a_trace_is_cast_again():
    layer, tensors = weights()
    cast_together(tensors, torch.bfloat16)
    for write in (lambda: layer.weight.data.mul_(2), lambda: layer.weight.numpy().fill(3)):
        write()
        assert torch.equal(cast_together(tensors, torch.bfloat16)[0], layer.weight.bfloat16())


def test_a_torch_that_copies_one_by_one(monkeypatch):
    monkeypatch.delattr(torch, '_foreach_copy_')
    source, place = torch.randn(3), torch.empty(3, dtype=torch.bfloat16)
    compat.foreach_copy([place], [source])
    assert torch.equal(place, source.bfloat16())


@needs_kernel
@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone])
def test_a_block_casts_its_linear_weights_in_one_launch(monkeypatch, backbone):
    arguments = dict(embed_dims=32, depths=(1,), num_heads=(2,), out_indices=(0,), window_size=3, drop_path_rate=0.0)
    model = backbone(backend='triton', **arguments).to(DEVICE).eval()
    block, x_BHWC = model.stages[0].blocks[0], torch.randn(1, 3, 4, 32, device=DEVICE)
    for parameter in block.parameters():  # the norms of V2 begin at zero
        nn.init.normal_(parameter, std=0.3)
    results, counts = [], []
    for fuse in ('', 'weights'):
        monkeypatch.setenv('SWIN_BACKBONE_FUSE', fuse)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            with Copies() as copies:
                y = block(x_BHWC)
            counts.append((copies.together, copies.alone))
            results.append([y, *torch.autograd.grad(y.float().square().mean(), list(block.parameters()))])
            with torch.no_grad(), Copies() as again:
                block(x_BHWC)
    assert all(map(torch.equal, *results))
    (nothing, alone), (once, fewer) = counts
    assert (nothing, once) == (0, 1)
    assert fewer <= alone - (8 if backbone is SwinBackbone else 6)
    assert again.together == 1

    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
        before = block(x_BHWC)
        for parameter in block.parameters():  # behind all versions, as mmengine's EMAHook
            parameter.data.copy_(parameter.data * 2)
        after = block(x_BHWC)
    assert not torch.equal(before, after)


@needs_kernel
@pytest.mark.skipif(torch.cuda.is_available(), reason='the wrappers are made for a CPU')
@pytest.mark.usefixtures('one_process')
@pytest.mark.parametrize('wrap', ['DDP', *(pytest.param(wrap, marks=pytest.mark.slow) for wrap in ('FSDP', 'FSDP2'))])
def test_in_data_parallel_training_every_change_of_a_weight_is_seen(monkeypatch, wrap):
    x, arguments = torch.randn(1, 3, 12, 16), dict(embed_dims=32, depths=(1,), num_heads=(2,), out_indices=(0,))

    def train_and_change(fuse):
        monkeypatch.setenv('SWIN_BACKBONE_FUSE', fuse)
        torch.manual_seed(0)
        backbone = SwinBackbone(window_size=3, drop_path_rate=0.0, backend='triton', **arguments)
        model, maps = data_parallel(wrap, backbone), []

        def evaluate():
            with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
                maps.append(model.eval()(x)[0].clone())

        evaluate()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with torch.autocast('cpu', torch.bfloat16):
            loss = model.train()(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        evaluate()
        model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})
        evaluate()
        for parameter in model.parameters():  # behind all versions, as mmengine's EMAHook
            parameter.data.mul_(0.5)
        evaluate()
        return maps

    maps, expected = train_and_change('weights'), train_and_change('')
    assert all(map(torch.equal, maps, expected))
    assert not any(map(torch.equal, maps, maps[1:]))
