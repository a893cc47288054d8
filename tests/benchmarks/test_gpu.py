"""benchmarks/gpu.py on a CPU: all parts but CUDA memory and kernels."""

import json
import sys

import pytest
import torch
from helpers import apart
from helpers.in_process import run

from benchmarks import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu_the_report_is_refused():
    result = apart.call(run, 'benchmarks.gpu')
    assert result.returncode == 2
    assert 'sees no GPU; --dry runs on a CPU' in result.stderr


def test_a_dry_report(tmp_path, monkeypatch, capsys):
    ours = {'swin_backbone': {}, 'swin_backbone, torch': {}, 'no backbone': dict(arch='none')}
    monkeypatch.setattr(gpu, 'OURS', ours)
    monkeypatch.setattr(sys, 'argv', ['gpu.py', '--dry', '--peers', 'mmdet', '--json', str(tmp_path / 'gpu.json')])
    assert gpu.main() == 1
    rows = {row['name']: row for row in json.loads((tmp_path / 'gpu.json').read_text())}
    assert rows['precision, swin_backbone']['good'] is True
    assert rows['precision, no backbone']['failed'].startswith('TypeError')
    for name in ('forward, swin_backbone', 'step, swin_backbone, torch'):
        assert rows[name]['ms'] > 0
        assert rows[name]['kernels'] > 8
    assert '| forward, swin_backbone | ms: ' in capsys.readouterr().out


def test_a_wrong_backbone_and_a_missing_peer(monkeypatch, capsys):
    def fail(error):
        raise error

    rows = [gpu.Row('precision', {'good': True})]
    for part, status, words in (
        (lambda: rows, 0, 'good: True'),
        (lambda: [gpu.Row('precision', {'good': False})], 1, 'good: False'),
        (lambda: fail(ModuleNotFoundError("No module named 'timm'")), 0, "| timm | left out: No module named 'timm' |"),
        (lambda: fail(RuntimeError('no memory\nand more')), 1, '| timm | failed: RuntimeError: no memory |'),
    ):
        monkeypatch.setattr(gpu, 'parts', lambda args, part=part: [('timm', part)])
        monkeypatch.setattr(sys, 'argv', ['gpu.py', '--dry'])
        assert gpu.main() == status
        assert words in capsys.readouterr().out
