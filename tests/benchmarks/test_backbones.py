"""benchmarks/backbones.py from the command line, with the smallest Swin."""

import json
import sys

import pytest
from helpers import apart, in_process

from benchmarks import backbones, timing
from swin_backbone.workbench.export.formats import OPERATOR_PRECISIONS

RUNTIMES = ['onnxruntime fp32', 'openvino fp32', 'openvino bf16']


def run(tmp_path, *arguments, **environment):
    command = ['benchmarks.backbones', '--arch', 'nano', '--shape', '32', '32', '--runs', '1', '--busy-machine']
    command += ['--peers', '', '--json', tmp_path / 'figures.json', *arguments]
    result = apart.call(in_process.run, *command, COLUMNS='120', **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout, json.loads((tmp_path / 'figures.json').read_text())['rows']


@pytest.mark.parametrize('backend', ['torch', pytest.param('triton', marks=pytest.mark.slow)])
def test_each_backend_and_with_cp_in_one_run(tmp_path, backend):
    _, rows = run(tmp_path, '--train', '--backend', 'native', backend, '--with-cp')
    ours = 'swin_backbone'
    assert [row['model'] for row in rows] == [ours, f'{ours}, native', f'{ours}, {backend}', f'{ours}, with_cp']


@pytest.mark.parametrize('more', [[], ['--keep-memory']])
def test_freed_memory_is_kept_on_request(more, monkeypatch):
    kept = []
    monkeypatch.setattr(backbones, 'keep_freed_memory', lambda: kept.append(True))
    monkeypatch.setattr(backbones.machine, 'pin_threads', lambda threads: None)
    arguments = ['--arch', 'nano', '--shape', '32', '--runs', '1', '--peers', '', '--busy-machine', *more]
    monkeypatch.setattr(sys, 'argv', ['backbones.py', *arguments])
    backbones.main()
    assert kept == [True] * len(more)


def test_a_profile_has_each_kind_of_work_and_its_floor(monkeypatch, capsys):
    """A fake module takes the place of the library with clocks."""

    class Clocks:
        def swin_profile_peaks(self, operations, numbers):
            operations._obj.value, numbers._obj.value = 2e9, 1e9

        def swin_profile(self, kind, seconds, amount):
            seconds._obj.value, amount._obj.value = kind * 1e-3, kind * 1e6

    monkeypatch.setattr(timing, 'use_clocks', lambda folder: Clocks())
    arguments = ['--profile', '--arch', 'nano', '--shape', '32', '--busy-machine']
    monkeypatch.setattr(sys, 'argv', ['backbones.py', *arguments])
    backbones.main()
    table = capsys.readouterr().out
    for work in ('products', 'softmax', 'GELU', 'norms, gather', 'residuals, scatter', 'packing'):
        assert work in table


def test_a_column_has_each_row_and_size(monkeypatch, capsys):
    calls = []

    def measure(options, threads):
        calls.append(options)
        peers = {} if options[options.index('--peers') + 1] == '' else {'mmdet': 0.4, 'timm': 0.3}
        return {backbones.OURS: 0.2, backbones.WITH_CP: 0.1, backbones.TORCH: 0.2, **peers}

    monkeypatch.setenv('ATEN_CPU_CAPABILITY', 'avx2')
    monkeypatch.setattr(backbones, 'measure_apart', measure)
    monkeypatch.setattr(sys, 'argv', ['backbones.py', '--column'])
    backbones.main()
    out = capsys.readouterr().out
    assert '| forward, 512x512, float32 | 200 ms, timm 300, **1.50**; torch 200, 2.00; with_cp 100, 4.00 |' in out
    assert '| training step, 512x512, bfloat16 | 200 ms, 1.00 of float32 |' in out
    assert '| 10240x10240 | 0.2 s | ' in out
    assert len(calls) == len(backbones.ROWS) + 2 * len(backbones.SIDES)


@pytest.mark.slow
def test_exported_in_each_runtime_beside_mmdet(tmp_path):
    for name in ('mmdet', 'onnxscript', 'onnxruntime', 'openvino'):
        pytest.importorskip(name, reason=f'{name} is not installed')
    out, rows = run(tmp_path, '--peers', 'mmdet', '--runtime', 'onnxruntime,openvino')
    kinds = [f'{sizes}, {runtime}' for sizes in ('fixed size', 'free sizes') for runtime in RUNTIMES]
    kinds += [
        f'operators, {runtime} {dtype}'
        for dtype in OPERATOR_PRECISIONS['swin']
        for runtime in ('onnxruntime', 'openvino')
    ]
    assert [row['model'] for row in rows] == [f'mmdet, fixed size, {runtime}' for runtime in RUNTIMES] + [
        f'swin_backbone, {kind}' for kind in [*kinds, 'torch float32', 'torch bfloat16']
    ]
    assert 'largest difference of outputs to mmdet' in out
