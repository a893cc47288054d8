"""Fill configs with `--data`, and read the data of configs."""

import json
import os
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
from mmengine.registry import DATASETS
from PIL import Image

from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.options import Options
from swin_backbone.workbench.configs.cfg_options import apply_options
from swin_backbone.workbench.configs.training_settings import apply_settings
from swin_backbone.workbench.data.annotations import uses_masks
from swin_backbone.workbench.data.balance import EpochPlan
from swin_backbone.workbench.data.load_picture import use_load_picture
from swin_backbone.workbench.data.prepare.user_data import index_user_data
from swin_backbone.workbench.resolve import apply_epoch_plan, combine

BOXES = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
MASKS = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
LABELS = 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'


def fill(config, data, work, annotations=None, names=None):
    """Return a config for a folder of data, and the report."""
    cfg = read_config(config)
    with mock.patch.dict(os.environ, SWIN_BACKBONE_DATA=str(work)):
        own = index_user_data(data, annotations, names, scope=cfg.default_scope, with_masks=uses_masks(cfg))
    return resolve(cfg, data=own), '\n'.join(own.lines)


def resolve(config, options=None, data=None, epoch=None):
    """Return the config of a training, as a job, without counting the pictures of an epoch."""
    options = options or Options()
    cfg = combine(config, options, data)
    apply_settings(cfg, options)
    apply_options(cfg, options.cfg_options or {})
    use_load_picture(cfg)
    if data is not None:
        apply_epoch_plan(cfg, options, data, epoch or EpochPlan(data.splits['train'].num_pictures))
    return cfg


def read(cfg, phase='train'):
    """Return the annotations of a config. Check that the pictures exist."""
    dataset = cfg[f'{phase}_dataloader'].dataset
    data = json.loads(Path(dataset.data_root, dataset.ann_file).read_text())
    for image in data['images']:
        assert cv2.imread(f'{dataset.data_root}/{dataset.data_prefix.img}/{image["file_name"]}') is not None
    return data


def boxes(data):
    """Return classes and boxes of all objects by picture."""
    names = {category['id']: category['name'] for category in data['categories']}
    pictures = {image['id']: image['file_name'].rpartition('/')[2] for image in data['images']}
    objects = {}
    for one in data['annotations']:
        objects.setdefault(pictures[one['image_id']], []).append((names[one['category_id']], *one['bbox']))
    return {name: sorted(several) for name, several in objects.items()}


def labels_of(cfg, phase='train'):
    """Return the labels of a segmentor's data set by picture."""
    dataset = DATASETS.build(dict(cfg[f'{phase}_dataloader'].dataset, pipeline=[]))
    items = map(dataset.get_data_info, range(len(dataset)))
    return {Path(item['img_path']).name: np.asarray(Image.open(item['seg_map_path'])) for item in items}
