"""Numbers that tools/test.py and tools/infer.py print and write."""

import pickle

import cv2
import pytest
import torch
from helpers.in_process import run_well
from helpers.openmmlab.own_data import detection, make_own_data, read_coco, write_coco
from helpers.openmmlab.random_models import save_random_model

from swin_backbone.openmmlab import runtime
from swin_backbone.openmmlab.config.cfg_options import parse_options

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')


@pytest.fixture(scope='module')
def detector(tmp_path_factory):
    """Words of a command line for a detector, its data with pictures of two shapes, and a random checkpoint."""
    root = make_own_data(tmp_path_factory.mktemp('own'))
    coco = read_coco(root, 'val')
    coco['images'][1]['height'] = 36
    cv2.imwrite(str(root / 'images' / 'val' / '1.png'), cv2.imread(str(root / 'images' / 'val' / '1.png'))[:36])
    write_coco(root, 'val', coco)
    config, _, *options = map(str, detection(root))
    checkpoint = save_random_model(runtime.load_config(config, None, parse_options(options), 'none'), root)
    return root, checkpoint, [config, checkpoint, '--cfg-options', *options]


def test_predictions_do_not_depend_on_the_batch(detector, tmp_path):
    *_, words = detector
    for size in (1, 8):
        command = ('tools/test.py', *words, f'test_dataloader.batch_size={size}', '--work-dir', tmp_path)
        run_well(*command, '--out', tmp_path / f'{size}.pkl')
    alone, together = (pickle.loads((tmp_path / f'{size}.pkl').read_bytes()) for size in (1, 8))
    assert [item['img_id'] for item in alone] == [item['img_id'] for item in together] == [0, 1]
    for first, second in zip(alone, together):
        assert len(first['pred_instances']['scores'])
        for name in ('scores', 'bboxes'):
            assert torch.equal(first['pred_instances'][name], second['pred_instances'][name])
