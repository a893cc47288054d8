"""Convolutions of the compiled library behave like the replaced nn.Conv2d."""

import copy
import pickle

import pytest
import torch
from torch import nn

from swin_backbone.kernels.native.memory import find_cache
from swin_backbone.openmmlab.layers import conv3x3
from swin_backbone.openmmlab.layers.conv3x3 import Conv2d, Conv3x3, use_channels_last
from swin_backbone.openmmlab.layers.extension import restore_layers


def made(*args, **kwargs):
    torch.manual_seed(0)
    conv = nn.Conv2d(*args, **kwargs)
    before = copy.deepcopy(conv)
    use_channels_last(conv)
    return conv, before


@pytest.fixture
def calls(monkeypatch):
    results = []

    def counted(*args):
        results.append(args[0].shape)
        return computed(*args)

    computed = conv3x3.convolve
    monkeypatch.setattr(conv3x3, 'convolve', counted)
    return results


def test_it_computes_the_same(calls):
    conv, before = made(32, 48, 3, padding=1)
    assert type(conv) is Conv3x3
    for shape in ((1, 32, 40, 30), (70, 32, 4, 4), (1, 32, 5, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(conv(x), before(x), rtol=1e-4, atol=1e-5)
    assert len(calls) == 2  # the last input is too small


@pytest.mark.parametrize('kind', [nn.Conv2d, nn.ConvTranspose2d])
def test_a_map_without_a_batch(kind):
    conv = kind(4, 8, 3, padding=1)
    x = torch.randn(4, 9, 7)
    expected = conv(x)
    use_channels_last(conv)
    torch.testing.assert_close(conv(x), expected)


@pytest.mark.parametrize(
    'settings',
    [
        dict(kernel_size=1),
        dict(kernel_size=3, padding='same'),
        dict(kernel_size=3, padding=1, stride=2),
        dict(kernel_size=3, padding=1, groups=2),
        dict(kernel_size=3, padding=2, dilation=2),
        dict(kernel_size=3, padding=1, padding_mode='circular'),
    ],
)
def test_other_convolutions_compute_channels_last_maps(settings):
    conv, before = made(32, 32, **settings)
    assert type(conv) is Conv2d
    x = torch.randn(2, 32, 9, 9)
    y = conv(x)
    assert y.is_contiguous(memory_format=torch.channels_last) or 'padding_mode' in settings  # torch pads a copy
    torch.testing.assert_close(y, before(x), rtol=1e-4, atol=1e-5)
    restore_layers(conv)
    assert type(conv) is nn.Conv2d


def test_a_subclass_stays():
    conv = type('Scaled', (nn.Conv2d,), {})(32, 32, 3, padding=1)
    use_channels_last(conv)
    assert type(conv).__name__ == 'Scaled'


def test_copies_pickles_and_state_dicts():
    conv, before = made(32, 32, 3, padding=1)
    x = torch.randn(1, 32, 24, 24)
    y = conv(x)
    assert conv.state_dict().keys() == before.state_dict().keys()
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert find_cache(conv)
        assert not find_cache(other)
        assert torch.equal(other(x), y)
        with torch.no_grad():
            other.weight.zero_()
        assert torch.equal(conv(x), y)
    assert repr(conv).replace('Conv3x3', 'Conv2d') == repr(before)


def test_hooks_modes_and_recorders(calls):
    conv, before = made(32, 32, 3, padding=1)
    conv.eval(), before.eval()
    x, seen = torch.randn(1, 32, 24, 24), []
    expected = before(x)
    conv.register_forward_hook(lambda *args: seen.append(args[0]))
    with torch.inference_mode():
        torch.testing.assert_close(conv(x), expected, rtol=1e-4, atol=1e-5)
    assert seen == [conv]
    torch.testing.assert_close(conv(x), expected, rtol=1e-4, atol=1e-5)  # after inference tensors
    assert len(calls) == 2
    with torch.autocast('cpu', torch.bfloat16):
        assert conv(x).dtype is torch.bfloat16
    del calls[2:]  # the library of some processors computes the autocast call
    torch.testing.assert_close(torch.jit.trace(conv, x, check_trace=False)(x), expected)
    torch.testing.assert_close(torch.func.vmap(conv)(x[None])[0], expected)
    exported = torch.export.export(conv, (x,)).module()
    torch.testing.assert_close(exported(x), expected)
    assert len(calls) == 2
