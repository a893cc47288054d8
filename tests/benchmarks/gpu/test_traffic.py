"""Bytes and operators, counted from shapes: of the kernels as of torch's own operators."""

import pytest
import torch
from torch import nn

from benchmarks.gpu.counts import count_traffic
from swin_backbone import SwinBackbone
from swin_backbone.backends.triton import trial

needs_kernel = pytest.mark.skipif(
    trial._try(torch.device('cpu'), torch.bfloat16, (3, 3), 16, False) is not None,
    reason="Triton's interpreter does not run here",
)
ATTEND = 'swin_backbone::attend_in_windows'


def make(**arguments):
    sizes = dict(embed_dims=32, depths=(2,), num_heads=(2,), out_indices=(0,), window_size=3, drop_path_rate=0.0)
    return SwinBackbone(**{**sizes, **arguments})


def test_layer_norm_reads_and_writes_float32_as_under_autocast_on_cuda():
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.LayerNorm(16))
    found = count_traffic(model, (10, 8), False, torch.bfloat16)
    assert found.calls['aten::native_layer_norm'] == 1
    assert found.bytes['aten::native_layer_norm'] == 4 * (2 * 160 + 2 * 16 + 2 * 10)  # with weight, bias and statistics
    assert found.bytes['aten::mm'] == 2 * (80 + 128 + 160)
    assert found.calls['aten::_to_copy'] == 3  # image, weight, and what the norm reads


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize('train', [False, True])
def test_counting_leaves_the_model_and_its_tables_as_they_were(train):
    model, x = make(backend='triton').eval(), torch.randn(1, 3, 40, 52)
    with torch.no_grad():
        (expected,) = model(x)
    weights = list(model.parameters())
    fresh = make(backend='triton', window_size=2).eval()
    for backbone in (model, fresh):
        count_traffic(backbone, (1, 3, 40, 52), train, torch.bfloat16)
    assert all(map(torch.Tensor.is_set_to, model.parameters(), weights))
    with torch.no_grad():
        assert torch.equal(model.eval()(x)[0], expected)
        assert fresh.eval()(x)[0].isfinite().all()  # which the tables of shapes alone would not let it compute


@needs_kernel
def test_recomputation_is_counted():
    plain, recomputed = (
        count_traffic(make(backend='triton', with_cp=with_cp), (1, 3, 40, 52), True, torch.bfloat16)
        for with_cp in (False, True)
    )
    assert recomputed.calls[ATTEND] == 2 * plain.calls[ATTEND] == 4


@needs_kernel
def test_each_fusion_takes_what_it_replaces(monkeypatch):
    found = {}
    for fuse in ('', 'norm', 'gelu', 'weights'):
        monkeypatch.setenv('SWIN_BACKBONE_FUSE', fuse)
        for train in (False, True):
            model = make(backend='triton', drop_path_rate=0.2)
            found[fuse, train] = count_traffic(model, (1, 3, 40, 52), train, torch.bfloat16)
    for (_, train), counted in found.items():
        assert counted.calls[ATTEND] == 2
        assert counted.calls[f'{ATTEND}_backward'] == 2 * train
    for train in (False, True):
        plain, norm, gelu, weights = (found[fuse, train] for fuse in ('', 'norm', 'gelu', 'weights'))
        assert norm.calls['swin_backbone::add_norm'] == 6
        assert plain.calls['aten::constant_pad_nd'] == norm.calls['aten::constant_pad_nd'] == 0
        assert gelu.calls['aten::gelu'] == 0
        assert gelu.calls['swin_backbone::bias_gelu'] == 2
        assert sum(norm.bytes.values()) < 0.9 * sum(plain.bytes.values())
        assert weights.calls['aten::_to_copy'] <= plain.calls['aten::_to_copy'] - 16
    assert found['weights', False].calls['aten::_foreach_copy_'] == 2
    assert found['weights', True].calls['aten::_foreach_copy_'] == 4
