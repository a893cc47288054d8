"""A convolution before the resize of maps equals mmseg's UPerHead, except for rounding."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from swin_backbone.kernels.detection import convolution
from swin_backbone.openmmlab.layers.conv3x3 import use_channels_last

SETTINGS = dict(in_channels=[8, 16, 32, 64], in_index=[0, 1, 2, 3], channels=16, num_classes=5)


def heads(**changed):
    from mmseg.models.decode_heads import UPerHead

    import swin_backbone

    settings = {**SETTINGS, 'norm_cfg': dict(type='BN'), **changed}
    theirs, ours = UPerHead(**settings).eval(), swin_backbone.UPerHead(**settings).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def maps(height=33, width=50, dtype=torch.float32):
    return [
        torch.randn(2, channels, -(-height // shrunk), -(-width // shrunk), dtype=dtype, requires_grad=True)
        for channels, shrunk in zip(SETTINGS['in_channels'], (1, 2, 4, 8))
    ]


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('size', [(33, 50), (1, 7)])
def test_equals_mmsegs(align_corners, size):
    theirs, ours = (head.double() for head in heads(align_corners=align_corners))
    inputs = maps(*size, dtype=torch.float64)
    expected, results = theirs(inputs), ours(inputs)
    torch.testing.assert_close(results, expected)
    weight = torch.randn_like(expected)
    of = [
        torch.autograd.grad((y * weight).sum(), [*inputs, *head.parameters()])
        for y, head in zip((results, expected), (ours, theirs))
    ]
    torch.testing.assert_close(*of)


@pytest.mark.parametrize('changed', [dict(norm_cfg=None), dict(act_cfg=dict(type='GELU')), dict(pool_scales=(1, 5))])
def test_other_settings_in_float32_and_training(changed):
    theirs, ours = (head.train() for head in heads(dropout_ratio=0, **changed))
    inputs = maps()
    torch.testing.assert_close(ours(inputs), theirs(inputs), rtol=1e-4, atol=1e-5)
    for expected, results in zip(theirs.buffers(), ours.buffers()):
        torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5)


def test_other_convolutions_are_mmsegs_own():
    theirs, ours = heads()
    for head in (theirs, ours):
        conv = head.fpn_bottleneck.conv
        head.fpn_bottleneck.conv = nn.Conv2d(64, 16, 3, padding=2, dilation=2, bias=False)
        head.fpn_bottleneck.conv.weight = conv.weight
    inputs = maps()
    torch.testing.assert_close(ours(inputs), theirs(inputs), rtol=1e-4, atol=1e-5)


def test_a_weight_is_packed_once(monkeypatch):
    packed, pack = [], convolution.pack
    monkeypatch.setattr(convolution, 'pack', lambda *of: packed.append(of) or pack(*of))
    _, ours = heads(channels=32)
    for module in ours.modules():
        use_channels_last(module)
    with torch.no_grad():
        ours(maps())
        first = len(packed)
        ours(maps())
    assert first == len(packed) > 1  # weights of the fused convolution, and of separate convolutions


@pytest.mark.parametrize('hooked', ['fpn_bottleneck', 'fpn_bottleneck.conv', 'bottleneck'])
def test_hooks_are_called(hooked):
    seen = []
    for head in heads():
        head.get_submodule(hooked).register_forward_hook(lambda module, x, y: seen.append(y))
        torch.manual_seed(0)
        head(maps())
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)


class CountedFlops(TorchDispatchMode):
    """torch's own FlopCounterMode has hooks on all modules."""

    total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket in flop_registry:
            self.total += flop_registry[function.overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


def test_no_resized_map_is_convolved():
    counted = []
    for head in heads(channels=256, pool_scales=(1,)):
        with CountedFlops() as counter, torch.no_grad():
            head(maps(32, 32))
        counted.append(counter.total)
    assert 0 < counted[1] < 0.7 * counted[0]


def test_a_graph_is_mmsegs():
    theirs, ours = heads()
    inputs = [x.detach() for x in maps(16, 16)]
    graphs = [torch.export.export(head, (inputs,)).graph for head in (theirs, ours)]
    names = [[str(node.target) for node in graph.nodes if node.op == 'call_function'] for graph in graphs]
    assert names[0] == names[1]
