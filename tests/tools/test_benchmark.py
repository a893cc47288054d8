"""tools/benchmark.py as a user runs it, on the smallest Swin."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(tmp_path, *arguments, **environment):
    command = [sys.executable, ROOT / 'tools' / 'benchmark.py', '--arch', 'nano', '--size', '32x32', '--runs', '1']
    result = subprocess.run(
        [*command, '--busy-machine', '--peers', '', '--json', tmp_path / 'figures.json', *arguments],
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'COLUMNS': '120', **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout, json.loads((tmp_path / 'figures.json').read_text())['rows']


def test_each_backend_and_with_cp_in_one_run(tmp_path):
    _, rows = run(tmp_path, '--train', '--attention-backend', 'sdpa', 'triton', '--with-cp')
    ours = 'swin_backbone'
    assert [row['model'] for row in rows] == [ours, f'{ours}, sdpa', f'{ours}, triton', f'{ours}, with_cp']


@pytest.mark.parametrize('train', [[], ['--train']])
def test_a_table_of_operations_and_the_floors(tmp_path, train):
    out, rows = run(tmp_path, '--kernels', *train, SWIN_BACKBONE_NATIVE='0')
    assert 'GFLOP at 790 TFLOP/s' in out
    assert ('the least of a fused forward' in out) == (not train)
    norms = [row for row in rows if row['name'] == 'aten::native_layer_norm']
    assert norms[0]['calls'] >= 2 * 8 + 4
    assert norms[0]['bytes'] > 0
