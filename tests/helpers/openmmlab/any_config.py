"""Train configs of the toolboxes on a user's data for an epoch, to the first metric, at the smallest cost."""

import copy

from helpers.in_process import forget_instances
from helpers.openmmlab.breadth import alone, shrink
from swin_backbone.openmmlab import runtime
from swin_backbone.openmmlab.config.training_settings import TrainingSettings

DETECTORS = [
    'faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
    'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    'htc/htc_r50_fpn_1x_coco.py',
    'retinanet/retinanet_r50_fpn_1x_coco.py',
    'pascal_voc/retinanet_r50_fpn_1x_voc0712.py',
    'gfl/gfl_r50_fpn_1x_coco.py',
    'tood/tood_r50_fpn_1x_coco.py',
    'yolox/yolox_tiny_8xb8-300e_coco.py',
    'rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py',
]
SEGMENTORS = [
    'fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py',
    'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
    'upernet/upernet_r50_4xb4-80k_ade20k-512x512.py',
    'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
    'ocrnet/ocrnet_hr18_4xb4-80k_ade20k-512x512.py',
    'knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512.py',
    'point_rend/pointrend_r50_4xb4-160k_ade20k-512x512.py',
    'deeplabv3plus/deeplabv3plus_r50-d8_4xb4-40k_voc12aug-512x512.py',
    'encnet/encnet_r50-d8_4xb4-80k_ade20k-512x512.py',
    'mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py',
]
CONFIGS = [*(f'mmdet::{name}' for name in DETECTORS), *(f'mmseg::{name}' for name in SEGMENTORS)]


def metrics_after_an_epoch(config, data, work_dir):
    """Train swin-nano on a user's data for an epoch. Return the metrics of the validation, and the runner."""
    settings, options = TrainingSettings(epochs=1, batch=2, img_scale=(64, 64)), {'model.backbone.init_cfg': None}
    cfg = runtime.load_config(config, str(work_dir), options, 'none', 'swin-nano', data=data, settings=settings)
    for part in ('train_cfg', 'test_cfg'):
        shrink(cfg.model.get(part))
    _predict_something(cfg.model)
    alone(cfg.model)
    cfg.model.backbone.depths = (1,) * len(cfg.model.backbone.get('depths', (2, 2, 2, 2)))
    for phase in ('train', 'val', 'test'):
        cfg[f'{phase}_dataloader'].update(num_workers=0, persistent_workers=False)
        cfg[f'{phase}_dataloader'].pop('prefetch_factor', None)
    if cfg.optim_wrapper.type == 'AmpOptimWrapper':
        runtime.enable_amp(cfg)
    runner = runtime.build_runner(copy.deepcopy(cfg))
    found = {}
    hook = runtime.Hook()
    hook.after_val_epoch = lambda runner, metrics=None: found.update(metrics or {})
    runner.register_hook(hook)
    try:
        runtime.run(runner, 'train')
    finally:
        forget_instances()
    return found, runner


def _predict_something(node):
    """Set score thresholds to 0. After few steps all scores are low."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ('score_thr', 'object_mask_thr') and isinstance(value, float):
                node[key] = 0.0
            _predict_something(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            _predict_something(value)
