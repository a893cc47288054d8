"""benchmarks/gpu/report.py, whose every part runs on a CPU on small maps but what CUDA alone has."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT, apart
from helpers.in_process import run

from benchmarks.gpu import report as gpu_report

DETECTOR = 'configs/mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'


def report(*arguments):
    command = [sys.executable, '-m', 'benchmarks.gpu.report', '--arch', 'nano', '--size', '32', '--batch', '1']
    return subprocess.run(
        [*command, *arguments],
        env={**os.environ, 'PYTHONPATH': str(ROOT)}, cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu_it_says_so():
    result = apart.call(run, 'benchmarks.gpu.report', '--arch', 'nano', '--size', '32', '--batch', '1')
    assert result.returncode == 2
    assert 'sees no GPU' in result.stderr


def test_what_is_not_installed_is_left_out_and_a_wrong_kernel_fails(monkeypatch, capsys):
    monkeypatch.setenv('TRITON_INTERPRET', '1')

    def fail(error):
        raise error
        yield

    row, no_row = (
        gpu_report.kernels.Row('attention', {'good': True}),
        ModuleNotFoundError("No module named 'mmpretrain'"),
    )
    for last, status in ((row, 0), (no_row, 0), (RuntimeError('no memory\nand more'), 1)):
        part = iter([last]) if last is row else fail(last)
        monkeypatch.setattr(gpu_report, 'parts', lambda args, part=part: [('a peer', part)])
        monkeypatch.setattr(sys, 'argv', ['report.py', '--device', 'cpu'])
        assert gpu_report.main() == status
        said = capsys.readouterr().out
        assert ("| a peer | left out: No module named 'mmpretrain' |" in said) == (last is no_row)
        assert ('| a peer | failed: RuntimeError: no memory |' in said) == (status == 1)


@pytest.mark.slow
def test_counts_without_a_gpu(monkeypatch):
    pytest.importorskip('triton', reason='triton is not installed')
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    result = run(
        *('benchmarks.gpu.report', '--count', '--arch', 'nano', '--size', '64x96', '--batch', '1', '--peers', '')
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line for line in result.stdout.split('For an issue:')[1].splitlines() if line.startswith('| forward, ')]
    assert [line for line in lines if 'fused: norm,gelu,weights' in line and 'add_norm' in line]
    assert all(' GB 0.0' in line and 'operators ' in line for line in lines)


@pytest.mark.slow
def test_one_table_of_everything(tmp_path):
    pytest.importorskip('triton', reason='triton is not installed')
    result = report(
        *(
            '--device',
            'cpu',
            '--peers',
            '',
            '--windows',
            '3',
            '--runs',
            '1',
            '--tools',
            '--detector',
            DETECTOR,
            '--json',
        ),
        str(tmp_path / 'gpu.json'),
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    table = result.stdout.split('For an issue:')[1].strip().splitlines()
    rows = [tuple(row.values()) for row in json.loads((tmp_path / 'gpu.json').read_text())]
    assert len(table) == len(rows) + 2
    names = [what for what, _ in rows]
    assert sum(name.startswith('attention') for name in names) == 4 * 2
    assert [name for name in names if name.startswith('trial')]
    for what in ('forward', 'step'):
        for variant in ('', ', sdpa', ', with_cp', ', fused: norm', ', fused: gelu', ', fused: weights'):
            assert f'{what}, swin_backbone{variant}' in names
            assert f'{what}, swin_backbone{variant}, kernels' in names
        assert f'{what}, swin_backbone V2, windows of 4' in names
    assert not [values for _, values in rows if 'failed:' in values]
    by_name = dict(rows)
    for of, module in (('mmpretrain, windows of 4', 'mmpretrain'), (f'training step, {Path(DETECTOR).stem}', 'mmdet')):
        is_there = importlib.util.find_spec(module) is not None
        found = [values for what, values in by_name.items() if of in what or what == DETECTOR]
        assert found
        assert all(('left out:' in values) != is_there for values in found)
    for tool in ('ncu', 'compute-sanitizer'):
        assert (tool in by_name) == (shutil.which(tool) is None)
