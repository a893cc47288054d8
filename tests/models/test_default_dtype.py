"""Models of float32 under another default dtype of torch: what a model draws and makes itself is float32."""

import pytest
import torch
from helpers.kernels import refusal
from helpers.kernels.errors import relative_error
from helpers.models.small_models import randomised

from swin_backbone import SwinBackbone, SwinV2Backbone

each_dtype = pytest.mark.parametrize('default', [torch.float64, torch.bfloat16, torch.float16])
needs_library = pytest.mark.skipif(refusal(torch.float32) is not None, reason='the compiled library is not built')


def step(model, x):
    torch.manual_seed(1)
    maps = model(x)
    return [*maps, *torch.autograd.grad(sum(y.square().mean() for y in maps), list(model.parameters()))]


@each_dtype
@pytest.mark.parametrize('backend', [pytest.param('native', marks=needs_library), 'torch'])
@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
def test_a_training_step_is_that_of_float32(kind, backend, default):
    sizes = dict(embed_dims=16, depths=(3,), num_heads=(2,), strides=(4,), out_indices=(0,), window_size=4)
    model, x = randomised(kind=kind, **sizes, drop_path_rate=0.5, backend=backend).train(), torch.randn(6, 3, 24, 40)
    expected = step(model, x)
    torch.set_default_dtype(default)
    found = step(model, x)
    assert all(tensor.dtype is torch.float32 for tensor in found)
    assert relative_error(found, expected) < 1e-6


@each_dtype
def test_drop_path_rates_are_those_of_float32(default):
    def rates():
        model = SwinBackbone(arch='nano', drop_path_rate=0.3)
        return [block.drop_path.drop_prob for stage in model.stages for block in stage.blocks]

    expected = rates()
    torch.set_default_dtype(default)
    assert rates() == expected
