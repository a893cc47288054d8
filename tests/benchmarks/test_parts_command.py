"""benchmarks/parts.py as a user runs it, on the smallest Swin."""

import json

import pytest
from helpers.in_process import ROOT, run

CONFIG = ROOT / 'configs' / 'demo' / 'mask-rcnn_swin-nano_fpn_shapes.py'
SMALL = '--size', '64', '--runs', '1', '--busy-machine'


def test_a_backbone_by_stage(tmp_path, monkeypatch):
    monkeypatch.setenv('COLUMNS', '140')
    result = run('benchmarks.parts', '--arch', 'nano', *SMALL, '--json', tmp_path / 'parts.json')
    assert result.returncode == 0, result.stderr
    assert 'floor / time' in result.stdout
    rows = json.loads((tmp_path / 'parts.json').read_text())['rows']
    assert [row['part'] for row in rows if row['part'].startswith('blocks')] == [
        f'blocks of stage {number}' for number in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_detector_by_part(dtype, monkeypatch):
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    pytest.importorskip('mmcv.ops', reason='mmcv is built without its operators')
    monkeypatch.setenv('COLUMNS', '140')
    result = run('benchmarks.parts', CONFIG, *SMALL, '--dtype', dtype)
    assert result.returncode == 0, result.stderr
    for part in ('backbone', 'neck', 'RPN', 'RoI heads', 'the rest', 'all'):
        assert part in result.stdout
    assert 'floor' not in result.stdout


def test_what_is_no_two_stage_detector_is_said():
    pytest.importorskip('mmseg', reason='mmseg is not installed')
    result = run('benchmarks.parts', ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py', *SMALL)
    assert result.returncode == 1
    assert 'is no two-stage detector, but: EncoderDecoder' in result.stderr
    assert 'Traceback' not in result.stderr
