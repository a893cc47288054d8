"""What a run is made of: counted."""

import pytest
import torch

from benchmarks.gpu.counts import count_flops, least_bytes, operations
from benchmarks.timing import peak_device_growth
from swin_backbone import SwinBackbone
from swin_backbone.backends.triton.attention import attend_in_windows

CPU = torch.device('cpu')


def test_calls_and_bytes_of_each_operator():
    x, y = torch.randn(10, 20, requires_grad=True), torch.randn(20, 30)

    def run():
        (x @ y).t().exp().sum().backward()
        x.grad = None

    found = {operation.name: operation for operation in operations(run, CPU, runs=2)}
    assert found['aten::exp'].calls == 1
    assert found['aten::exp'].bytes == 4 * (300 + 300)
    assert found['aten::mm'].calls == 2  # backward's is seen as well
    assert found['aten::mm'].bytes == 2 * 4 * (200 + 600 + 300)
    assert 'aten::t' not in found
    assert all(operation.seconds >= 0 for operation in found.values())
    assert found['aten::mm'].seconds > 0


def test_what_only_allocates_moves_nothing():
    x = torch.randn(10, 20)

    def run():
        for make in (x.new_empty, torch.empty):
            make(1000, 1000).resize_(0)
        torch.empty_like(x), x.new_empty_strided((5, 5), (5, 1)), torch.zeros(3)

    found = {operation.name: operation for operation in operations(run, CPU, runs=1)}
    assert not [name for name in found if 'empty' in name]
    assert found['aten::zeros'].bytes == 12 if 'aten::zeros' in found else found['aten::zero_'].bytes >= 12


def test_flops_know_the_kernel_and_agree_with_the_other_ways():
    pytest.importorskip('triton', reason='triton is not installed')
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    x = torch.randn(1, 3, 28, 28, device=device)
    counts = {}
    for name in ('triton', 'reference'):
        sizes = dict(embed_dims=32, depths=(2,), num_heads=(2,), out_indices=(0,))
        backbone = SwinBackbone(**sizes, backend=name).to(device).eval()
        with torch.no_grad():
            counts[name] = count_flops(lambda backbone=backbone: backbone(x))
    assert counts['triton'] == counts['reference']
    qkv, bias = torch.randn(49, 96, device=device, requires_grad=True), torch.randn(2, 49, 49, device=device)
    settings = 1, 7, 7, [7, 7], [0, 0], False, 1.0
    forward = count_flops(lambda: attend_in_windows(qkv, None, bias, *settings))
    whole = count_flops(lambda: attend_in_windows(qkv, None, bias, *settings)[0].sum().backward())
    assert forward == 2 * 2 * 49 * 49 * 32
    assert whole == 7 / 2 * forward


def test_the_least_of_swin_t_at_800x1344():
    widths, strides = (96, 192, 384, 768), (4, 8, 16, 32)
    maps = tuple(torch.empty(1, C, -(-800 // s), -(-1344 // s), device='meta') for C, s in zip(widths, strides))
    least = least_bytes(maps, (2, 2, 6, 2), itemsize=2)
    assert 1.3e9 < least < 1.6e9  # beyond the blocks there are patches, their merging, and the outputs


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
def test_peak_on_a_device():
    x = torch.randn(2**20, device='cuda')
    assert peak_device_growth(lambda: (x + 1).sum(), x.device) >= 2**22
