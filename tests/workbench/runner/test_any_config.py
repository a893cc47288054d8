"""Options like `--data` and `--epochs` on configs of two toolboxes and four layouts, to the first metric.

test_guards.py and test_model.py in the folder above train a config of each toolbox in every run.
"""

import copy

import pytest
from helpers.in_process import forget_instances
from helpers.openmmlab import layouts
from helpers.openmmlab.breadth import alone, shrink
from helpers.openmmlab.jobs import build_runner, load_config

from swin_backbone.openmmlab.config_parts import walk
from swin_backbone.workbench.configs.amp import enable_amp
from swin_backbone.workbench.runner import build
from swin_backbone.workbench.runner.hooks.val_loss import ValLossHook

pytestmark = pytest.mark.slow
DETECTORS = [
    'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    'htc/htc_r50_fpn_1x_coco.py',
    'pascal_voc/retinanet_r50_fpn_1x_voc0712.py',
    'yolox/yolox_tiny_8xb8-300e_coco.py',
    'rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py',
]
SEGMENTORS = [
    'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
    'upernet/upernet_r50_4xb4-80k_ade20k-512x512.py',
    'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
    'ocrnet/ocrnet_hr18_4xb4-80k_ade20k-512x512.py',
    'deeplabv3plus/deeplabv3plus_r50-d8_4xb4-40k_voc12aug-512x512.py',
    'mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py',
]
CONFIGS = [*(f'mmdet::{name}' for name in DETECTORS), *(f'mmseg::{name}' for name in SEGMENTORS)]
# layout: annotations (boxes, masks of objects, labels of pixels)
HOLDS = dict(coco=('boxes', 'masks'), yolo=('boxes',), voc=('boxes',), labels=('labels',))
WITH_MASKS = ('mask_rcnn', 'htc', 'mask2former')


def takes(config):
    if config.startswith('mmseg'):
        return 'labels'
    return 'masks' if any(f'::{family}/' in config for family in WITH_MASKS) else 'boxes'


def metrics_after_an_epoch(config, data, work_dir):
    """Train swin-nano on a user's data for an epoch. Return the metrics of the validation, and the runner."""
    settings, options = dict(epochs=1, batch=2, shape=(64, 64)), {'model.backbone.init_cfg': None}
    cfg = load_config(config, str(work_dir), options, 'none', 'swin-nano', data=data, **settings)
    for part in ('train_cfg', 'test_cfg'):
        shrink(cfg.model.get(part))
    for _, part in walk(cfg.model):  # after few steps all scores are low
        if isinstance(part, dict):
            thresholds = [key for key in ('score_thr', 'object_mask_thr') if isinstance(part.get(key), float)]
            part.update(dict.fromkeys(thresholds, 0.0))
    alone(cfg.model)
    cfg.model.backbone.depths = (1,) * len(cfg.model.backbone.get('depths', (2, 2, 2, 2)))
    for phase in ('train', 'val', 'test'):
        cfg[f'{phase}_dataloader'].update(num_workers=0, persistent_workers=False)
        cfg[f'{phase}_dataloader'].pop('prefetch_factor', None)
    if cfg.optim_wrapper.type == 'AmpOptimWrapper':
        enable_amp(cfg)
    runner = build_runner(copy.deepcopy(cfg))
    results = {}
    hook = build.Hook()
    hook.after_val_epoch = lambda runner, metrics=None: results.update(metrics or {})
    runner.register_hook(hook)
    runner.register_hook(ValLossHook())
    try:
        build.run_loop(runner, 'train')
    finally:
        forget_instances()
    return results, runner


@pytest.mark.parametrize('layout', HOLDS)
@pytest.mark.parametrize('config', CONFIGS)
def test_trains_to_the_first_metric_or_says_what_it_takes(config, layout, tmp_path):
    root = layouts.made(layout, tmp_path)
    if takes(config) not in HOLDS[layout]:
        with pytest.raises(ValueError, match=r'for a config of|trains or tests on masks'):
            metrics_after_an_epoch(config, root, tmp_path / 'work')
        return
    metrics, runner = metrics_after_an_epoch(config, root, tmp_path / 'work')
    name = 'mIoU' if takes(config) == 'labels' else 'coco/bbox_mAP'
    assert 0 <= metrics[name] <= 100
    assert 0 < metrics['val_loss'] < float('inf')
    assert ('coco/segm_mAP' in metrics) == (takes(config) == 'masks')
    assert runner.iter == 2  # an epoch of batches of two pictures
