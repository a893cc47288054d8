"""The report of a GPU, on a CPU: what it says is computed, and a wrong kernel is a line that says so."""

import pytest
import torch

from benchmarks.gpu import kernels
from swin_backbone.archs import ARCHS
from swin_backbone.backends.triton import check

pytest.importorskip('triton', reason='triton is not installed')

DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


def test_the_maps_at_which_each_stage_attends():
    found = kernels.stages(ARCHS['tiny'], (800, 1344))
    assert found == [(96, 3, 200, 336), (192, 6, 100, 168), (384, 12, 50, 84), (768, 24, 25, 42)]


@pytest.mark.parametrize('shifted', [False, True])
def test_the_kernels_are_compared_and_timed(shifted):
    (row,) = kernels.attention(kernels.Stage(32, 2, 5, 7), 1, 3, shifted, torch.bfloat16, DEVICE)
    assert row.values['good'] is True
    assert row.values['forward ms'] > 0
    assert row.values['backward ms'] > 0


def test_the_kernels_are_tuned(monkeypatch):
    monkeypatch.setattr(kernels, 'TUNED', {'8 warps': dict(num_warps=8), 'twice the programs': dict(share=2)})
    rows = list(kernels.tuning(kernels.Stage(16, 1, 3, 2), 1, 3, False, torch.bfloat16, DEVICE))
    assert [row.what.split()[1] for row in rows] == ['forward', 'backward']
    for row in rows:
        assert list(row.values) == ['as it is', *kernels.TUNED]
        assert all(isinstance(milliseconds, float) for milliseconds in row.values.values())


def test_the_ceilings_of_the_machine():
    stage = kernels.Stage(16, 1, 5, 7)
    rows = {row.what: row.values for row in kernels.describe(DEVICE, torch.bfloat16, stage, 2)}
    assert set(rows['tools']) == {'ncu', 'compute-sanitizer', 'nvidia-smi'}
    layers = [values for what, values in rows.items() if what.startswith('linear layer, 70 tokens, ')]
    assert len(layers) == 4
    assert all(values['TFLOP/s'] > 0 and values['GB/s'] > 0 for values in layers)
    assert rows['memory']['GB/s of a copy'] > 0
    assert rows['a launch']['us in all'] >= rows['a launch']['us of the CPU'] > 0


def test_each_kernel_is_launched_once(monkeypatch):
    stage = kernels.Stage(16, 1, 5, 4)
    assert kernels.launch(stage, 1, 3, True, torch.bfloat16, DEVICE).values == {'good': True}
    forward = kernels.attend_in_windows
    monkeypatch.setattr(kernels, 'attend_in_windows', lambda *arguments: [x * torch.nan for x in forward(*arguments)])
    assert kernels.launch(stage, 1, 3, True, torch.bfloat16, DEVICE).values == {'good': False}


def test_a_wrong_kernel_is_said(monkeypatch):
    literal = check.attend_literally
    monkeypatch.setattr(kernels, 'attend_literally', lambda *arguments: 1.1 * literal(*arguments))
    (row,) = kernels.attention(kernels.Stage(16, 1, 3, 3), 1, 3, False, torch.bfloat16, DEVICE)
    assert row.values['good'] is False
    (row,) = kernels.any_size(1, 5, torch.bfloat16, DEVICE)
    assert row.values['good'] is False
    assert row.values['wrong:'].count('window=') == 1


def test_maps_of_any_size():
    (row,) = kernels.any_size(2, 5, torch.bfloat16, DEVICE)
    assert row.values == {'good': True, 'maps': 2, 'wrong:': None}


def test_one_line_for_each_row():
    rows = [kernels.Row('a', {'ms': 1.23456, 'good': True, 'unknown': None}), kernels.Row('b', {})]
    assert kernels.markdown(rows).splitlines() == ['| what | |', '|---|---|', '| a | ms 1.235, good True |', '| b |  |']
