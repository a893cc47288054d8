"""Options like `--data` and `--epochs` on configs of two toolboxes and four layouts, to the first metric."""

import pytest

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')

from helpers.openmmlab import layouts
from helpers.openmmlab.any_config import CONFIGS, metrics_after_an_epoch

# layout: annotations (boxes, masks of objects, labels of pixels)
HOLDS = dict(coco=('boxes', 'masks', 'labels'), yolo=('boxes',), voc=('boxes',), labels=('labels',))
FAST = {('mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', 'labels')}  # test_api.py has a detector
WITH_MASKS = ('mask_rcnn', 'htc', 'mask2former')


def takes(config):
    if config.startswith('mmseg'):
        return 'labels'
    return 'masks' if any(f'::{family}/' in config for family in WITH_MASKS) else 'boxes'


CELLS = [(config, layout) for config in CONFIGS for layout in HOLDS]


@pytest.mark.parametrize(
    ('config', 'layout'),
    [pytest.param(*cell, marks=[] if cell in FAST else [pytest.mark.slow]) for cell in CELLS],
)
def test_trains_to_the_first_metric_or_says_what_it_takes(config, layout, tmp_path):
    root = layouts.made(layout, tmp_path)
    if takes(config) not in HOLDS[layout]:
        with pytest.raises(ValueError, match=r'for a config of|trains on masks'):
            metrics_after_an_epoch(config, root, tmp_path / 'work')
        return
    metrics, runner = metrics_after_an_epoch(config, root, tmp_path / 'work')
    name = 'mIoU' if takes(config) == 'labels' else 'coco/bbox_mAP'
    assert 0 <= metrics[name] <= 100
    assert ('coco/segm_mAP' in metrics) == (takes(config) == 'masks')
    assert runner.iter == 2  # an epoch of batches of two pictures
