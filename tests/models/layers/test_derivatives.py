"""Second derivatives and vectorised Jacobians, by the compiled library and by torch."""

import pytest
import torch
from helpers import reference
from helpers.models.blocks import make_block
from helpers.models.small_models import TWO_STAGES, randomised
from torch.autograd import functional

from swin_backbone import SwinBackbone, SwinMLPBackbone, SwinV2Backbone
from swin_backbone.models.layers import SwinV2Block
from swin_backbone.models.layers.swin_v2_block import normalise_qk

BACKBONES = [SwinBackbone, SwinV2Backbone, SwinMLPBackbone]
WAYS = [dict(), dict(with_cp=True), dict(backend='torch'), dict(backend='torch', with_cp=True)]


def make(backbone, **arguments):
    return randomised(kind=backbone, **{**TWO_STAGES, **arguments})


def assert_near(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


@pytest.mark.parametrize('mask_padding', [False, True])
@pytest.mark.parametrize('shift', [(0, 0), (1, 2)])
def test_swin_v2s_second_derivative_where_a_map_is_padded(shift, mask_padding):
    """The key of padding is 0, and a zero's length has no derivative."""
    block = make_block(SwinV2Block, (3, 4), shift, mask_padding=mask_padding).double()
    x_BHWC = torch.randn(1, 4, 5, 16, dtype=torch.double, requires_grad=True)
    msa = block.attn.w_msa
    weights = msa.qkv.weight, msa.q_bias, msa.logit_scale, msa.cpb_mlp[2].weight

    def run(x_BHWC, *_):
        return block(x_BHWC)

    assert torch.autograd.gradgradcheck(run, (x_BHWC, *weights), fast_mode=True)
    ours, truth = (
        torch.autograd.grad(once.square().sum(), (x_BHWC, *weights))
        for y in (block(x_BHWC), reference.block(block, x_BHWC))
        for (once,) in [torch.autograd.grad(y.sin().sum(), x_BHWC, create_graph=True)]
    )
    for a, b in zip(ours, truth):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('length', [0.0, 1e-13, 2e-12, 1.0, 1e18])
@pytest.mark.parametrize('dtype', [torch.float32, torch.double])
def test_derivatives_of_directions_are_finite(dtype, length):
    qkv_T3C, scale_h = torch.randn(2, 24, dtype=torch.double), torch.tensor([3.0, 4.0], dtype=torch.double)
    qkv_T3C[1] *= length / qkv_T3C[1].norm()
    inputs = [x.to(dtype).requires_grad_() for x in (qkv_T3C, scale_h)]
    once = torch.autograd.grad(normalise_qk(*inputs).sin().sum(), inputs, create_graph=True)
    twice = torch.autograd.grad(sum((g * g.detach().sign()).sum() for g in once), inputs)
    assert all(g.isfinite().all() for g in (*once, *twice))
    if length <= 1e-12:
        assert not once[0][1, :16].any()


@pytest.mark.parametrize('way', WAYS, ids=str)
@pytest.mark.parametrize('backbone', BACKBONES)
def test_jacobians_and_hessians(backbone, way):
    model, image = make(backbone, **way), torch.randn(1, 3, 20, 36)
    weight = model.stages[1].blocks[1].ffn.layers[1].bias.detach()

    def outputs(x, bias):
        biases = {'stages.1.blocks.1.ffn.layers.1.bias': bias}
        return torch.func.functional_call(model, biases, (x,))[1].mean((0, 2, 3))[:3]

    def loss(shift_3):
        return model(image + shift_3.view(1, 3, 1, 1))[0].sin().mean()

    expected = torch.func.jacrev(outputs, (0, 1))(image, weight)
    vectorizes = (False,) if way.get('with_cp') and 'backend' in way else (False, True)  # torch's checkpoint refuses
    for vectorize in vectorizes:
        for found, truth in zip(functional.jacobian(outputs, (image, weight), vectorize=vectorize), expected):
            assert_near(found, truth)
    expected = torch.func.hessian(loss)(torch.zeros(3))
    for vectorize in vectorizes:
        assert_near(functional.hessian(loss, torch.zeros(3), vectorize=vectorize), expected)


@pytest.mark.parametrize('backbone', BACKBONES)
def test_a_batch_of_gradients_has_the_forwards_drop_path(backbone):
    model, image = make(backbone, drop_path_rate=0.5).train(), torch.randn(4, 3, 20, 36, requires_grad=True)
    found = []
    for model.backend in ('auto', 'torch'):
        torch.manual_seed(1)
        y = model(image)[1].mean((2, 3))[:, :3].flatten()
        found.append(torch.autograd.grad(y, image, torch.eye(len(y)), is_grads_batched=True)[0])
    assert_near(*found)


@pytest.mark.parametrize('way', WAYS, ids=str)
def test_a_shared_weights_second_derivative_counts_each_use_once(way):
    """A block runs twice in a row: the second input depends on the block's weights."""
    model, image = make(SwinBackbone, **way), torch.randn(1, 3, 20, 36)
    model.stages[1].blocks[1] = model.stages[1].blocks[0]
    weight = model.stages[1].blocks[0].ffn.layers[1].bias.detach()
    direction = torch.randn_like(weight)

    def loss(bias):
        biases = {f'stages.1.blocks.{i}.ffn.layers.1.bias': bias for i in (0, 1)}
        y_BCHW = torch.func.functional_call(model, biases, (image,))[1]
        return (y_BCHW * torch.linspace(-1, 1, 64)[:, None, None]).exp().sum()

    def product(bias):
        bias = bias.clone().requires_grad_()
        (once,) = torch.autograd.grad(loss(bias), bias, create_graph=True)
        return torch.autograd.grad(once @ direction, bias)[0]

    (expected,) = torch.func.vjp(torch.func.grad(loss), weight)[1](direction)
    assert_near(product(weight), expected)


@pytest.mark.parametrize('way', WAYS, ids=str)
@pytest.mark.parametrize('backbone', BACKBONES)
def test_the_gradient_of_each_parameter_alone(backbone, way):
    """With a single trainable parameter, the library skips further gradients, but not the needed gradient."""
    model, image = make(backbone, **way), torch.randn(1, 3, 21, 36)

    def gradients(parameters):
        model.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_()
        return torch.autograd.grad(sum(y.square().mean() for y in model(image)), parameters)

    parameters = list(model.parameters())
    for parameter, expected in zip(parameters, gradients(parameters)):
        torch.testing.assert_close(
            gradients([parameter])[0], expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item() + 1e-6
        )
