"""Kernels and bytes on paper: fake CUDA tensors record equal operators in every build of PyTorch."""

import json
import sys

import pytest
import torch
from torch import nn

from benchmarks import gpu, paper
from swin_backbone import SwinBackbone

SHAPE = 1, 3, 200, 332
# Kernels and MiB of Swin-T in float16 and float32, recorded with PyTorch 2.13 for CPUs and 2.14 for CUDA
COUNTS = {'auto': ((334, 460), (167, 459)), 'torch': ((454, 523), (287, 525))}


@pytest.mark.parametrize('backend', ['auto', pytest.param('torch', marks=pytest.mark.slow)])
def test_a_forward_of_ours(backend):
    model = SwinBackbone(arch='tiny', drop_path_rate=0.0, backend=backend)
    for dtype, (kernels, mebibytes) in zip((torch.float16, torch.float32), COUNTS[backend]):
        traffic = paper.count(model, SHAPE, dtype)
        assert sum(traffic.kernels.values()) <= kernels
        assert sum(traffic.bytes.values()) / 2**20 <= mebibytes + 1


def test_a_linear_layer_under_autocast():
    layer = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Flatten(0), nn.GELU())
    traffic = paper.count(layer, (5, 6), torch.float16)
    assert traffic.kernels == dict(_to_copy=2, mm=1, gelu=1)
    assert traffic.bytes == dict(_to_copy=(5 * 6 + 4 * 6) * 6, mm=2 * (5 * 6 + 4 * 6 + 5 * 4), gelu=2 * 2 * 20)
    assert paper.count(layer, (5, 6), torch.float16, keep_casts=True).kernels['_to_copy'] == 1  # of the input


def test_a_compiled_forward_fuses():
    layer = nn.Sequential(nn.Linear(6, 4, bias=False), nn.GELU(), nn.Tanh())
    if not torch.version.cuda:
        with pytest.raises(RuntimeError, match='takes a CUDA build of PyTorch, without a GPU; got 2'):
            paper.count_compiled(layer, (5, 6), torch.float16)
        return
    traffic = paper.count_compiled(layer, (5, 6), torch.float16)
    assert traffic.kernels == {'fused': 3, 'extern_kernels.mm': 1}  # two casts, and GELU with tanh
    assert traffic.bytes == {'fused': (5 * 6 + 4 * 6) * 6 + 2 * 2 * 20, 'extern_kernels.mm': 2 * (5 * 6 + 4 * 6 + 20)}


def test_the_table(tmp_path, monkeypatch):
    words = ['--paper', '--arch', 'nano', '--peers', 'mmdet', '--shape', '200', '--json', str(tmp_path / 'gpu.json')]
    monkeypatch.setattr(sys, 'argv', ['gpu.py', *words])
    assert gpu.main() == 0
    ours, _, mmdet = json.loads((tmp_path / 'gpu.json').read_text())
    assert ours['name'] == 'on paper, swin_backbone'
    assert ours['bfloat16 weights, kernels'] == ours['float32, kernels'] < 0.6 * ours['bfloat16, kernels']  # no casts
    if 'left out' not in mmdet:
        assert ours['bfloat16, GiB'] < 0.7 * mmdet['bfloat16, GiB']
        assert ours['bfloat16, kernels'] < 0.7 * mmdet['bfloat16, kernels']
