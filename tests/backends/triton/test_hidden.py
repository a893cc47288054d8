"""A bias and a GELU as one kernel against the literal ones, in Triton's interpreter or on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.timing import bytes_kept
from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.backends.triton import trial
from swin_backbone.backends.triton.hidden import bias_gelu, bias_gelu_backward

pytest.importorskip('triton', reason='triton is not installed')

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@pytest.mark.parametrize('dtype', list(TOLERANCE))
@pytest.mark.parametrize(('tokens', 'channels'), [(37, 24), (16, 256), (5, 300)])
def test_outputs_and_gradients_equal_the_twins(tokens, channels, dtype):
    hidden_TD = (torch.randn(tokens, channels, device=DEVICE) * 3).to(dtype).requires_grad_()
    bias_D = torch.randn(channels, device=DEVICE).to(dtype).requires_grad_()
    exact = [x.detach().double().requires_grad_() for x in (hidden_TD, bias_D)]
    outputs = bias_gelu(hidden_TD, bias_D), F.gelu(exact[0] + exact[1])
    assert outputs[0].dtype == dtype
    weight = torch.randn(tokens, channels, device=DEVICE).to(dtype)
    results = [outputs[0], *torch.autograd.grad(outputs[0], (hidden_TD, bias_D), weight)]
    expected = [outputs[1], *torch.autograd.grad(outputs[1], exact, weight.double())]
    for result, literal in zip(results, expected):
        assert (result.double() - literal).abs().max() < TOLERANCE[dtype] * literal.abs().max()


def test_opcheck():
    hidden_TD = torch.randn(6, 5, device=DEVICE, requires_grad=True)
    bias_D = torch.randn(5, device=DEVICE, requires_grad=True)
    torch.library.opcheck(bias_gelu, (hidden_TD, bias_D))
    torch.library.opcheck(bias_gelu_backward, (torch.ones(6, 5, device=DEVICE), hidden_TD.detach(), bias_D.detach()))


def test_backward_keeps_hidden_and_bias_alone():
    bias_D = torch.nn.Parameter(torch.randn(24, device=DEVICE))

    class Activation(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias_D = bias_D

        def forward(self, x_TD):
            return bias_gelu(x_TD.requires_grad_() + 0, self.bias_D)

    assert bytes_kept(Activation(), torch.randn(10, 24, device=DEVICE), torch.float32) == 4 * 10 * 24


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func).removesuffix('.default'))
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(
    trial._try(DEVICE, torch.float32, (3, 3), 16, False) is not None, reason='the Triton kernel does not run here'
)
@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone])
def test_a_backbone_computes_the_same_with_it(monkeypatch, backbone):
    arguments = dict(embed_dims=32, depths=(1,), num_heads=(2,), out_indices=(0,), window_size=3, drop_path_rate=0.0)
    model = backbone(backend='triton', **arguments).to(DEVICE).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, results = torch.randn(1, 3, 12, 16, device=DEVICE), []
    for fuse in ('', 'gelu'):
        monkeypatch.setenv('SWIN_BACKBONE_FUSE', fuse)
        with Names() as names:
            (y,) = model(x)
        assert names.seen.count('swin_backbone.bias_gelu') == (fuse == 'gelu')
        assert names.seen.count('aten.gelu') == (fuse != 'gelu')
        results.append([y, *torch.autograd.grad(y.square().mean(), list(model.parameters()))])
    largest = max(float(x.detach().abs().max()) for x in results[0])
    for result, expected in zip(*results):
        assert (result - expected).abs().max() <= 1e-5 * largest
