"""benchmarks/models.py from the command line, with the models of the demos."""

import json

import pytest
from helpers.in_process import ROOT, run, run_well

from swin_backbone import devices

SMALL = '--shape', '64', '--runs', '1', '--busy-machine'
STEPS = ['toolbox', 'backbone', 'layers', 'convolutions', 'bfloat16']


@pytest.mark.parametrize(
    ('name', 'more'),
    [('mask-rcnn_swin-nano_fpn_shapes.py', ['--train']), ('swin-nano_upernet_shapes.py', ['--keep-memory'])],
)
def test_each_step_is_timed(name, more, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(devices, 'keep_freed_memory', lambda: kept.append(True))
    run_well('benchmarks.models', ROOT / 'configs/demo' / name, *SMALL, *more, '--json', tmp_path / 'found.json')
    rows = json.loads((tmp_path / 'found.json').read_text())['rows']
    assert [row['model'] for row in rows] == STEPS
    assert bool(kept) == ('--keep-memory' in more)


def test_what_has_no_swin_is_said():
    result = run('benchmarks.models', 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', *SMALL)
    assert result.returncode == 1
    assert 'model.backbone must be a SwinBackbone or SwinTransformer' in result.stderr
