"""Products of float32 numbers by AMX have the error of float32, although AMX multiplies bfloat16 alone.

On processors without AMX, the tests check products in float32.
"""

import pytest
import torch
import torch.nn.functional as F
from helpers.models.blocks import rms
from torch import nn

from swin_backbone.models.layers import PatchEmbed


@torch.no_grad()
def project(x_TC, weight):
    """Return a linear layer by the library: patches are pixels of C channels."""
    layer = PatchEmbed(weight.shape[1], weight.shape[0], (1, 1), None)
    layer.projection.weight.copy_(weight[..., None, None])
    nn.init.zeros_(layer.projection.bias)
    layer.backend = 'native'
    return layer(x_TC.T[None, :, None])[0, 0]


@pytest.mark.parametrize(
    ('tokens', 'inputs', 'outputs'), [(500, 96, 96), (401, 48, 144), (230, 1600, 32), (70, 801, 16)]
)
@pytest.mark.parametrize('scale', [1e-20, 1.0, 1e15])
def test_error_is_that_of_float32(tokens, inputs, outputs, scale):
    x_TC, weight = torch.randn(tokens, inputs) * scale, torch.randn(outputs, inputs) / inputs**0.5
    x_TC[::2] *= torch.logspace(-3, 3, inputs)  # numbers of a sum differ in size
    truth = F.linear(x_TC.double(), weight.double())
    ours, torchs = project(x_TC, weight) - truth, F.linear(x_TC, weight) - truth
    for rows in (slice(0, None, 2), slice(1, None, 2)):
        assert rms(ours[rows] / scale) < 2 * rms(torchs[rows] / scale)


def test_integers_of_24_bits_are_exact():
    x_TC = torch.randint(-(2**24), 2**24, (64, 32)).float()
    assert torch.equal(project(x_TC, torch.eye(32)), x_TC)
    assert torch.equal(project(torch.eye(32), x_TC), x_TC.T)


def test_infinities_and_nan_are_not_lost():
    x_TC = torch.ones(40, 32)
    x_TC[3, 5], x_TC[17, 0], x_TC[39, 31] = torch.inf, torch.nan, -torch.inf
    finite = project(x_TC, torch.ones(16, 32)).isfinite().all(1)
    assert finite.logical_not().nonzero().flatten().tolist() == [3, 17, 39]
