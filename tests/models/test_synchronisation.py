"""A training step of a backbone never waits for a GPU: no value of a tensor is read on the CPU."""

import pytest
import torch
from helpers.kernels.waits import OPERATORS

from benchmarks.paper import Traffic
from swin_backbone import SwinBackbone, SwinV2Backbone


@pytest.mark.parametrize('kind', [SwinBackbone, SwinV2Backbone])
@pytest.mark.parametrize('arguments', [dict(), dict(with_cp=True, mask_padding=True)])
def test_forward_and_backward_read_no_value(kind, arguments):
    sizes = dict(embed_dims=32, depths=(2, 2), num_heads=(2, 2), strides=(4, 2), out_indices=(0, 1))
    model = kind(**sizes, **arguments, backend='torch')
    with Traffic() as traffic:
        sum(y.square().mean() for y in model.train()(torch.randn(2, 3, 60, 52))).backward()
    assert traffic.kernels['native_layer_norm_backward']
    assert not OPERATORS & traffic.kernels.keys()
