"""Blocks whose attention is the Triton kernel: what padding carries comes by a pointer, and no tensor is padded."""

import pytest
import torch
from helpers.backends.errors import relative_error
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from swin_backbone import SwinBackbone, SwinV2Backbone
from swin_backbone.backends.triton import trial

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
SIZES = dict(embed_dims=32, depths=(1,), num_heads=(2,), out_indices=(0,), window_size=4, drop_path_rate=0.0)
BACKBONES = [SwinBackbone, SwinV2Backbone]
pytestmark = pytest.mark.skipif(
    trial._try(DEVICE, torch.float32, (4, 4), 16, False) is not None, reason='the Triton kernel does not run here'
)


def make_block(backend, backbone=SwinBackbone, **arguments):
    torch.manual_seed(0)
    model = backbone(backend=backend, **SIZES, **arguments)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.to(DEVICE).stages[0].blocks[0]


def output_and_gradients(block, x_BHWC):
    x_BHWC = x_BHWC.clone().requires_grad_()
    named = {name: parameter for name, parameter in block.named_parameters() if parameter.requires_grad}
    y_BHWC = block(x_BHWC)
    weight = torch.randn(y_BHWC.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    gradients = torch.autograd.grad((y_BHWC.float() * weight).sum(), [x_BHWC, *named.values()])
    return dict(zip(['output', 'input', *named], [y_BHWC.detach(), *gradients]))


def assert_same(results, expected, tolerance=1e-4):
    assert results.keys() == expected.keys()
    largest = max(float(x.abs().max()) for x in expected.values())
    for name, x in expected.items():  # a bias of keys has no gradient but rounding's
        error = float((results[name].float() - x.float()).abs().max())
        assert error <= tolerance * max(float(x.abs().max()), 1e-2 * largest), f'{name} is off by {error:.1e}'


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((str(func).removesuffix('.default'), args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('fuse', ['', 'norm,gelu,weights'])
def test_no_tensor_of_tokens_is_padded(monkeypatch, backbone, fuse):
    monkeypatch.setenv('SWIN_BACKBONE_FUSE', fuse)
    block, x_BHWC = make_block('triton', backbone), torch.randn(1, 5, 6, 32, device=DEVICE)
    block(x_BHWC)  # the kernels are tried
    with Names() as names:
        output_and_gradients(block, x_BHWC)
    calls = [(name, args[0].shape) for name, args in names.seen if args and isinstance(args[0], torch.Tensor)]
    assert [name for name, _ in calls].count('swin_backbone.attend_in_windows') == 1
    assert [name for name, _ in calls].count('swin_backbone.attend_in_windows_backward') == 1
    assert not [shape for name, shape in calls if name == 'aten.constant_pad_nd' and len(shape) > 1]
    rows = {shape[0] for _, shape in calls if shape}
    assert 30 in rows
    assert 31 not in rows


@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('how', ['no bias', 'frozen bias', 'norm'])
def test_it_equals_the_reference(monkeypatch, backbone, how):
    blocks = [make_block(name, backbone, qkv_bias=how != 'no bias') for name in ('triton', 'reference')]
    if how == 'frozen bias':
        for block in blocks:
            for name, parameter in block.named_parameters():
                parameter.requires_grad_(name.split('.')[-1] not in ('q_bias', 'v_bias') and 'qkv.bias' not in name)
    if how == 'norm':
        monkeypatch.setenv('SWIN_BACKBONE_FUSE', 'norm')
    x_BHWC = torch.randn(1, 5, 6, 32, device=DEVICE)
    assert_same(*(output_and_gradients(block, x_BHWC) for block in blocks))


@pytest.mark.parametrize(('dtype', 'fuse'), [(torch.float16, 'weights'), (torch.bfloat16, '')])
def test_under_autocast(monkeypatch, dtype, fuse):
    """The row is in the dtype of qkv, and its gradient gets to the bias in the bias's own."""
    monkeypatch.setenv('SWIN_BACKBONE_FUSE', fuse)
    block, x_BHWC = make_block('triton'), torch.randn(1, 5, 6, 32, device=DEVICE)
    with torch.autocast(DEVICE.type, dtype), Names() as names:
        results = output_and_gradients(block, x_BHWC)
    (arguments,) = (args for name, args in names.seen if name == 'swin_backbone.attend_in_windows')
    assert [x.dtype for x in arguments[:2]] == [dtype, dtype]
    assert results['attn.w_msa.qkv.bias'].dtype == torch.float32
    expected = output_and_gradients(make_block('reference'), x_BHWC)
    assert results.keys() == expected.keys()
    error = relative_error(results.values(), expected.values())
    assert error < (2.5e-3 if dtype == torch.float16 else 2e-2)


class Adapted(nn.Linear):
    """A layer of a user's, which gives for zeros something else than its bias."""

    def forward(self, x):
        return super().forward(x + 0.5)


@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('how', ['hook', 'layer'])
def test_what_another_qkv_gives_for_padding_is_what_padding_has(backbone, how):
    results, seen = [], []
    for name in ('triton', 'reference'):
        block = make_block(name, backbone)
        attention = block.attn.w_msa
        if how == 'layer':
            other = Adapted(32, 96, bias=attention.qkv.bias is not None).to(DEVICE)
            other.load_state_dict(attention.qkv.state_dict())
            attention.qkv = other
        else:
            attention.qkv.register_forward_hook(lambda layer, inputs, output: seen.append(inputs) or output * 2 + 1)
        results.append(output_and_gradients(block, torch.full((1, 5, 6, 32), 0.1, device=DEVICE)))
    assert_same(*results)
    assert len(seen) == (2 if how == 'hook' else 0), 'the layer is called once by each block'
