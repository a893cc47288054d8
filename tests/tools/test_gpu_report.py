"""tools/gpu_report.py, whose every part runs on a CPU on small maps but what CUDA alone has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from in_process import run

ROOT = Path(__file__).parents[2]


def report(*arguments):
    command = [sys.executable, ROOT / 'tools' / 'gpu_report.py', '--arch', 'nano', '--size', '32', '--batch', '1']
    return subprocess.run(
        [*command, *arguments],
        env={**os.environ, 'PYTHONPATH': str(ROOT)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu_it_says_so():
    result = report()
    assert result.returncode == 2
    assert 'sees no GPU' in result.stderr


@pytest.mark.slow
def test_counts_without_a_gpu(monkeypatch):
    pytest.importorskip('triton', reason='triton is not installed')
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    result = run(
        *('tools/gpu_report.py', '--count', '--arch', 'nano', '--size', '64x96', '--batch', '1', '--peers', '')
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line for line in result.stdout.split('For an issue:')[1].splitlines() if line.startswith('| forward, ')]
    assert [line for line in lines if 'fused: norm,gelu,weights' in line and 'add_norm' in line]
    assert all(' GB 0.0' in line and 'operators ' in line for line in lines)


@pytest.mark.slow
def test_one_table_of_everything(tmp_path):
    pytest.importorskip('triton', reason='triton is not installed')
    result = report(
        *('--device', 'cpu', '--peers', '', '--windows', '3', '--runs', '1', '--json'),
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
    assert not [values for _, values in rows if 'failed:' in values]
