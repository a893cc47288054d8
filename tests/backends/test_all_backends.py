"""Every backend that runs here computes what the reference does: outputs and gradients of whole backbones.

A backend that cannot compute a case must refuse it with its own sentence.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.backends import BACKENDS
from swin_backbone.backends.reference import Reference

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
SMALL = dict(embed_dims=32, depths=(2, 1), num_heads=(2, 2), strides=(4, 2), out_indices=(0, 1), window_size=4)


class Mine(Reference):
    """What one writes to add a backend: here patch merging as a convolution; a real one writes all four layers."""

    name = 'mine'

    def __init__(self):
        self.merged = 0

    def why_not(self, request):
        return 'Mine knows no Swin-MLP.' if request.kind == 'mlp' else super().why_not(request)

    def merge(self, x_BHWC, w, eps, post_norm, plan, cache):
        if not post_norm or eps is None:
            return super().merge(x_BHWC, w, eps, post_norm, plan, cache)
        self.merged += 1
        x_BCHW = F.pad(x_BHWC, (0, 0, 0, x_BHWC.shape[2] % 2, 0, x_BHWC.shape[1] % 2)).permute(0, 3, 1, 2)
        y_BCHW = F.conv2d(x_BCHW, w.reduction_weight.unflatten(1, (-1, 2, 2)), stride=2)
        return F.layer_norm(y_BCHW.permute(0, 2, 3, 1), y_BCHW.shape[1:2], w.norm_weight, w.norm_bias, eps)


CASES = {
    'plain': dict(),
    'rectangular windows, masked padding': dict(mask_padding=True, window_size=(3, 4)),
    'small maps': dict(small_map='shrink', window_size=9),
    'windows of each stage, recomputed': dict(with_cp=True, window_size=((5, 4), (3, 3)), strip_tokens=None),
    'no biases, no norm of patches': dict(qkv_bias=False, patch_norm=False),
    'drop path': dict(drop_path_rate=0.5),
    'position embedding': dict(use_abs_pos_embed=True, pretrain_img_size=32),
}
OF_ATTENTION = ('mask_padding', 'qkv_bias')
AROUND_ATTENTION = ('no biases, no norm of patches', 'drop path', 'position embedding')  # what V1 shows of a kernel


def build(backbone, backend, arguments):
    torch.manual_seed(0)
    if backbone is SwinMLPBackbone:
        arguments = {name: value for name, value in arguments.items() if name not in OF_ATTENTION}
    model = backbone(backend=backend, **{**SMALL, 'drop_path_rate': 0.0, **arguments})
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.05 if 'cpb_mlp' in name else 0.3)
    return model.to(DEVICE).train()


def maps_and_gradients(model, x_BCHW):
    """By name."""
    torch.manual_seed(1)
    maps = model(x_BCHW)
    named = dict(model.named_parameters())
    loss = sum((x.float() * torch.linspace(-1, 1, x.numel(), device=x.device).view(x.shape)).sum() for x in maps)
    found = torch.autograd.grad(loss, list(named.values()))
    return {**{f'map {i}': x.detach() for i, x in enumerate(maps)}, **dict(zip(named, found))}


def assert_same(found, expected, tolerance):
    assert found.keys() == expected.keys()
    largest = max(float(x.abs().max()) for name, x in expected.items() if not name.startswith('map'))
    for name, x in expected.items():
        # A bias of keys has no gradient but rounding's, so small ones are measured against the largest.
        scale = max(float(x.abs().max()), 0 if name.startswith('map') else 1e-2 * largest)
        error = float((found[name].float() - x.float()).abs().max())
        assert error <= tolerance * scale, f'{name} is off by {error:.1e} of {scale:.1e}'


def refusal(model, x):
    """Why a backend cannot compute a forward of a model; None: it can."""
    backend = model.backend if not isinstance(model.backend, str) else BACKENDS[model.backend]
    return next(filter(None, (backend.why_not(stage.request(x)) for stage in model.stages)), None)


@pytest.mark.parametrize(
    ('backend', 'backbone', 'case'),
    [
        pytest.param(
            backend, backbone, case, id=f'{getattr(backend, "name", backend)}-{backbone.__name__}-{case}',
            marks=[pytest.mark.slow] * ((backend, backbone) == ('triton', SwinV2Backbone) and case in AROUND_ATTENTION),
        )
        for backend in [*BACKENDS, Mine()]
        for backbone in (SwinBackbone, SwinV2Backbone, SwinMLPBackbone)
        for case in CASES
    ],
)  # fmt: skip
def test_it_computes_what_the_reference_does(backend, backbone, case):
    height = 18 if backend == 'triton' and DEVICE.type == 'cpu' else 30  # an interpreter takes seconds
    x = torch.randn(2, 3, height, 37, device=DEVICE)
    model = build(backbone, backend, CASES[case])
    reason = refusal(model, x)
    if reason is not None:
        with pytest.raises(ValueError, match='cannot compute this: ') as error:
            model(x)
        assert str(error.value).endswith(reason)
        assert reason.endswith('.')
        pytest.skip(reason)
    expected = maps_and_gradients(build(backbone, 'reference', CASES[case]).double(), x.double())
    assert_same(maps_and_gradients(model, x), expected, 1e-4)
    if case != 'drop path':
        with torch.no_grad():
            for y, wanted in zip(model(x), expected.values()):
                assert (y - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize('backbone', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize('backend', list(BACKENDS))
def test_under_autocast_it_is_as_near_as_half_precision(backend, backbone):
    x = torch.randn(1, 3, 30, 37, device=DEVICE)
    model = build(backbone, backend, {})
    with torch.autocast(DEVICE.type, torch.bfloat16):
        reason = refusal(model, x)
        if reason is not None:
            pytest.skip(reason)
        found = maps_and_gradients(model, x)
    expected = maps_and_gradients(build(backbone, 'reference', {}).double(), x.double())
    for name, wanted in expected.items():
        if name.startswith('map'):
            error = (found[name].double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
            assert error < 0.03, name
        assert found[name].dtype == torch.float32 or name.startswith('map')


def test_a_backend_of_ones_own_goes_through_the_public_arguments():
    mine = Mine()
    model, x = SwinV2Backbone(arch='nano', backend=mine).eval(), torch.randn(1, 3, 40, 40)
    with torch.no_grad():
        before = model(x)
        assert mine.merged == 3
        model.backend = 'auto'
        for y, wanted in zip(model(x), before):
            torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    assert mine.merged == 3
    with pytest.raises(ValueError, match=r"backend='mine' cannot compute this: Mine knows no Swin-MLP\."):
        SwinMLPBackbone(arch='nano', backend=mine)(x)
    with pytest.raises(TypeError, match='backend must be one of'):
        SwinBackbone(arch='nano', backend=nn.Identity())


def test_all_of_them_are_named_once():
    assert list(BACKENDS) == ['native', 'eager', 'graph', 'triton', 'reference']
    assert all(backend.name == name for name, backend in BACKENDS.items())
    with pytest.raises(ValueError, match=r"backend must be one of \['auto', 'native', .*'reference'\].* got 'flash'"):
        SwinBackbone(arch='nano', backend='flash')
