"""benchmarks/backbones.py as a user runs it, on the smallest Swin."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from helpers import apart, in_process

from benchmarks import backbones

RUNTIMES = ['onnxruntime fp32', 'openvino fp32', 'openvino bf16']


def run(tmp_path, *arguments, **environment):
    command = ['benchmarks.backbones', '--arch', 'nano', '--size', '32x32', '--runs', '1', '--busy-machine']
    command += ['--peers', '', '--json', tmp_path / 'figures.json', *arguments]
    result = apart.call(in_process.run, *command, COLUMNS='120', **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout, json.loads((tmp_path / 'figures.json').read_text())['rows']


@pytest.mark.parametrize('backend', ['graph', pytest.param('triton', marks=pytest.mark.slow)])
def test_each_backend_and_with_cp_in_one_run(tmp_path, backend):
    _, rows = run(tmp_path, '--train', '--backend', 'eager', backend, '--with-cp')
    ours = 'swin_backbone'
    assert [row['model'] for row in rows] == [ours, f'{ours}, eager', f'{ours}, {backend}', f'{ours}, with_cp']


@pytest.mark.parametrize('train', [[], ['--train']])
def test_a_table_of_operations_and_the_floors(tmp_path, train):
    peaks = '--peak-gbs', '40', '--peak-tflops', '0.25'
    out, rows = run(tmp_path, '--kernels', *peaks, *train, SWIN_BACKBONE_NATIVE='0')
    assert 'GFLOP at 0.25 TFLOP/s' in out
    assert 'at 40 GB/s' in out
    assert ('the least of a fused forward' in out) == (not train)
    norms = [row for row in rows if row['name'] == 'aten::native_layer_norm']
    assert norms[0]['calls'] >= 2 * 8 + 4
    assert norms[0]['bytes'] > 0


def test_what_is_taken_in_turn_is_on_the_device(monkeypatch):
    """On `meta`, which refuses tensors of a CPU as a GPU does, but has no autocast."""
    monkeypatch.setattr(backbones.timing, 'make_run', lambda model, x_BCHW, train, dtype: partial(model.eval(), x_BCHW))
    args = SimpleNamespace(device='meta', batch=2, dtype='float32', arch='nano')
    builders = {'ours': partial(backbones.build, 'ours', 1, 'nano', {})}
    ratios = backbones.measure_sizes_in_turn(args, builders, (256, 256))
    assert ratios['ours'] > 0


def test_on_cuda_other_ideas_are_taken_off(monkeypatch):
    """There is no strip and no compiled operator to be left out; each variant computes in another way."""
    args = SimpleNamespace(device='cuda:0', peers='', version=1, arch='nano', ablate=True, with_cp=False)
    args.strip_tokens = args.backend = []
    builders = backbones.build_all(args)
    assert list(builders) == ['swin_backbone', 'SDPA, no Triton kernel', 'pad, roll, masks; no Triton kernel']
    assert [builders[name]().backend for name in list(builders)[1:]] == ['eager', 'graph']


def test_an_unknown_bandwidth_is_asked_for():
    command = ['benchmarks.backbones', '--arch', 'nano', '--size', '32', '--kernels', '--peers', '', '--busy-machine']
    result = apart.call(in_process.run, *command)
    assert result.returncode != 0
    assert '--peak-gbs' in result.stderr
    assert 'Traceback' not in result.stderr


@pytest.mark.slow
def test_exported_in_each_runtime_beside_mmdet(tmp_path):
    for name in ('mmdet', 'onnxscript', 'onnxruntime', 'openvino'):
        pytest.importorskip(name, reason=f'{name} is not installed')
    out, rows = run(tmp_path, '--peers', 'mmdet', '--runtime', 'onnxruntime,openvino')
    kinds = [f'{sizes}, {runtime}' for sizes in ('fixed size', 'free sizes') for runtime in RUNTIMES]
    assert [row['model'] for row in rows] == [f'mmdet, fixed size, {runtime}' for runtime in RUNTIMES] + [
        f'swin_backbone, {kind}' for kind in [*kinds, 'torch float32', 'torch bfloat16']
    ]
    assert 'largest difference of outputs to mmdet' in out
