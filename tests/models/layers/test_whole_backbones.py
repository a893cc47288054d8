"""Whole backbones against the literal algorithm: outputs and gradients, by every usable backend."""

import pytest
import torch
from helpers import reference
from helpers.kernels import refusal
from torch import nn

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.kernels.triton.plans import plan_attention
from swin_backbone.models.windows import Windows

BACKENDS = ['native', 'torch', 'triton']
GPU = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
SMALL = dict(embed_dims=32, depths=(2, 1), num_heads=(2, 2), strides=(4, 2), out_indices=(0, 1), window_size=4)
CASES = {
    'plain': dict(),
    'rectangular windows, masked padding': dict(mask_padding=True, window_size=(3, 4)),
    'small maps': dict(small_map='shrink', window_size=9),
    'windows of each stage, recomputed': dict(with_cp=True, window_size=((5, 4), (3, 3))),
    'no biases, no norm of patches': dict(qkv_bias=False, patch_norm=False),
    'drop path': dict(drop_path_rate=0.5),
    'position embedding': dict(use_abs_pos_embed=True, pretrain_img_size=32),
}
OF_ATTENTION = ('mask_padding', 'qkv_bias')
# Cases that differ in the attention, Triton's part. Slow tests have the others: Triton's interpreter is slow.
BY_TRITON = 'rectangular windows, masked padding', 'small maps', 'no biases, no norm of patches'


def device_of(backend):
    return GPU if backend == 'triton' else torch.device('cpu')


def build(backbone, backend, arguments):
    reason = refusal(torch.float32)
    if backend == 'native' and reason is not None:
        pytest.skip(reason)
    if backend == 'triton':
        attention = SwinBackbone(**SMALL, backend='triton').stages[0].blocks[0].attn.w_msa
        planned = plan_attention(attention, torch.empty(1, 7, 7, 32, device=GPU), Windows(7, 7, (4, 4)))
        if isinstance(planned, str):
            pytest.skip(planned)
    if backbone is SwinMLPBackbone:
        arguments = {name: value for name, value in arguments.items() if name not in OF_ATTENTION}
    torch.manual_seed(0)
    model = backbone(backend=backend, **{**SMALL, 'drop_path_rate': 0.0, **arguments})
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.05 if 'cpb_mlp' in name else 0.3)
    return model.train().to(device_of(backend))


def with_gradients(model, maps):
    """Maps, and gradients of all parameters, by name."""
    named = dict(model.named_parameters())
    loss = sum((x.float() * torch.linspace(-1, 1, x.numel(), device=x.device).view(x.shape)).sum() for x in maps)
    grads = torch.autograd.grad(loss, list(named.values()))
    return {**{f'map {i}': x.detach() for i, x in enumerate(maps)}, **dict(zip(named, grads))}


def drop_path_factors(model, batch):
    """Return the factors of all blocks, drawn like mmcv's DropPath."""
    factors = []
    for stage in model.stages:
        for block in stage.blocks:
            rate = block.drop_path.drop_prob
            factors.append(
                torch.rand(2, batch).add_(1 - rate).floor_().div_(1 - rate) if rate else torch.ones(2, batch)
            )
    return factors


@pytest.mark.parametrize(
    ('backend', 'case'),
    [
        pytest.param(backend, case, marks=pytest.mark.slow if backend == 'triton' and case not in BY_TRITON else ())
        for backend in BACKENDS
        for case in CASES
    ],
)
@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone, SwinMLPBackbone])
def test_it_computes_what_the_reference_does(backend, backbone, case):
    shape = (1, 3, 18, 21) if backend == 'triton' else (2, 3, 30, 37)  # the interpreter's time grows with the windows
    x, model = torch.randn(shape, device=device_of(backend)), build(backbone, backend, CASES[case])
    if backend in ('native', 'triton') and backbone is SwinMLPBackbone:
        with pytest.raises(ValueError, match=f"'{backend}' cannot compute this: .* Swin-MLP"):
            model(x)
        return
    torch.manual_seed(1)
    results = with_gradients(model, model(x))
    torch.manual_seed(1)
    factors = [f.double() for f in drop_path_factors(model, len(x))]
    truth = with_gradients(model.double(), reference.maps(model, x.double(), factors))
    largest = max(float(y.abs().max()) for name, y in truth.items() if not name.startswith('map'))
    for name, y in truth.items():
        # The gradient of a bias of keys is rounding alone. Small gradients are compared with the largest.
        scale = max(float(y.abs().max()), 0 if name.startswith('map') else 1e-2 * largest)
        assert float((results[name] - y).abs().max()) <= 1e-4 * scale, name


@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize('backend', BACKENDS)
def test_under_autocast_it_is_as_near_as_half_precision(backend, backbone):
    shape = (1, 3, 18, 21) if backend == 'triton' else (1, 3, 30, 37)
    x, model = torch.randn(shape, device=device_of(backend)), build(backbone, backend, {})
    reason = refusal(torch.bfloat16)
    if backend == 'native' and reason is not None:
        pytest.skip(reason)
    with torch.autocast(x.device.type, torch.bfloat16):
        results = with_gradients(model, model(x))
    truth = with_gradients(model.double(), reference.maps(model, x.double()))
    for name, y in truth.items():
        if name.startswith('map'):
            assert (results[name].double() - y).square().mean().sqrt() / y.square().mean().sqrt() < 0.03, name
        else:
            assert results[name].dtype == torch.float32
