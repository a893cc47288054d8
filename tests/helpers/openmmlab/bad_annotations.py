"""Invalid annotations, and the ways by which mmdet and pycocotools read annotations."""

import json
import logging

import cv2
import numpy as np
import torch
from mmdet.utils import register_all_modules
from mmengine.config import Config
from pycocotools import mask as coco_mask

from swin_backbone.checks import DataError
from swin_backbone.workbench.data.datasets import BuiltDatasets
from swin_backbone.workbench.data.guard import guard_dataset
from swin_backbone.workbench.runner.safe_runner import RunSettings, SafeRunner

SIDE = 48
SQUARE = [4, 6, 28, 6, 28, 30, 4, 30]
COUNTS = [SIDE * 4 + 6, 24, *[24, 24] * 23, SIDE * SIDE - SIDE * 28 + 18]  # the square as runs
NAN = float('nan')


def rle(counts, size=(SIDE, SIDE)):
    return dict(size=list(size), counts=counts)


# Invalid masks for a picture of 48x48.
MASKS = {
    'far': [[4, 6, 1e8, 6, 28, 30]],
    'a large integer': [[4, 6, 10**400, 6, 28, 30]],
    'NaN': [[4, 6, NAN, 6, 28, 30]],
    'strings': [['4', '6', '28', '6', '28', '30']],
    'a string': 'polygon',
    'numbers without a polygon': SQUARE,
    'a polygon of points': [[[4, 6], [28, 6], [28, 30]]],
    'RLE of another size': rle([0, 24 * 24], (24, 24)),
    'RLE without counts': dict(size=[SIDE, SIDE]),
    'RLE that overruns': rle([0, SIDE * SIDE + 1]),
    'RLE that ends early': rle([10, 20]),
    'RLE of negative runs': rle([-10, SIDE * SIDE + 10]),
    'RLE of fractions': rle([0.5, SIDE * SIDE - 0.5]),
    'compressed RLE of nothing': rle(''),
    'compressed RLE cut short': rle('PPP'),
    'compressed RLE of other characters': rle('!!!!'),
    'compressed RLE of umlauts': rle('äöü'),
    'compressed RLE of many digits': rle('o' * 40 + '0'),
    'compressed RLE that overruns': rle('0' + 'ooo1'),
}  # fmt: skip

# Masks that mmdet skips in training, and COCO's evaluation reads.
SHORT = {'an empty polygon': [[]], 'two points beside another': [SQUARE, [4, 6, 28, 30]]}


def changed(table, change):
    return lambda coco: coco[table][0].update(change)


# A change to an annotation file, and a text in the error.
CASES = {
    **{
        f'mask: {name}': (changed('annotations', dict(segmentation=mask)), 'annotation 10 ')
        for name, mask in {**MASKS, **SHORT, 'no polygons': [], 'null': None}.items()
    },
    'NaN in bbox': (changed('annotations', dict(bbox=[4, 6, NAN, 24])), 'annotation'),
    'three numbers in bbox': (changed('annotations', dict(bbox=[4, 6, 24])), 'annotation'),
    'null for bbox': (changed('annotations', dict(bbox=None)), 'annotation'),
    'a list for image_id': (changed('annotations', dict(image_id=[0])), 'annotation'),
    'the id of another object': (changed('annotations', dict(id=1)), 'annotation'),
    'null for file_name': (changed('images', dict(file_name=None)), 'image'),
    'a negative height': (changed('images', dict(height=-SIDE)), 'image'),
    'the name of another category': (changed('categories', dict(name='bolt')), 'categor'),
    'the id of another category': (changed('categories', dict(id=7)), 'categor'),
    'a number among the objects': (lambda coco: coco['annotations'].append(5), ''),
    'an object for the objects': (lambda coco: coco.update(annotations={}), ''),
    'no categories': (lambda coco: coco.update(categories=[]), ''),
}


def good_coco():
    """Return two pictures with a square, a polygon and an RLE."""
    return dict(
        images=[dict(id=i, file_name=f'{i}.png', height=SIDE, width=SIDE) for i in range(2)],
        annotations=[
            dict(id=10 if i == 0 else i, image_id=i, category_id=3, bbox=[4, 6, 24, 24], area=576, iscrowd=0,
                 segmentation=[SQUARE] if i % 2 == 0 else rle(COUNTS))
            for i in range(2)
        ],
        categories=[dict(id=3, name='nut'), dict(id=7, name='bolt')],
    )  # fmt: skip


def make_data(root, change):
    """Write data with a change to `good_coco()`, and return the config of a detector on them."""
    coco = good_coco()
    change(coco)
    (root / 'images').mkdir(parents=True, exist_ok=True)
    for i in range(2):
        cv2.imwrite(str(root / 'images' / f'{i}.png'), np.full((SIDE, SIDE, 3), 99, np.uint8))
    (root / 'coco.json').write_text(json.dumps(coco))
    return config(root)


def config(root):
    """Return the config of a detector's data, with masks for training and test."""
    register_all_modules()
    dataset = dict(
        type='CocoDataset', data_root=str(root), ann_file='coco.json', data_prefix=dict(img='images'),
        metainfo=dict(classes=('nut', 'bolt')), serialize_data=False,  # serialization takes half a second
        pipeline=[
            dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='PackDetInputs'),
        ],
    )  # fmt: skip
    loader = dict(batch_size=1, num_workers=0, dataset=dataset, sampler=dict(type='DefaultSampler', shuffle=False))
    metric = dict(type='CocoMetric', ann_file=str(root / 'coco.json'), metric=['bbox', 'segm'])
    return Config(dict(default_scope='mmdet', train_dataloader=loader, val_dataloader=loader, val_evaluator=metric))


def guarded_runner(cfg):
    """Return a runner that builds data loaders and evaluators alone."""
    runner = object.__new__(SafeRunner)
    runner.cfg, runner.logger = cfg, logging.getLogger('bad_annotations')
    runner.settings = RunSettings(BuiltDatasets(cfg))
    return runner


def train(cfg):
    return list(guarded_runner(cfg).build_dataloader(cfg.train_dataloader))


def evaluate(cfg):
    """Score perfect predictions."""
    evaluator = guarded_runner(cfg).build_evaluator(cfg.val_evaluator)
    evaluator.dataset_meta = dict(classes=('nut', 'bolt'))
    pixels = np.zeros((SIDE, SIDE, 1), np.uint8, order='F')
    pixels[6:30, 4:28] = 1
    for i in range(2):
        results = dict(
            bboxes=torch.tensor([[4.0, 6, 28, 30]]), scores=torch.ones(1), labels=torch.zeros(1, dtype=torch.long),
            masks=coco_mask.encode(pixels),
        )  # fmt: skip
        evaluator.process([dict(img_id=i, ori_shape=(SIDE, SIDE), pred_instances=results)])
    return evaluator.evaluate(2)


def browse(cfg):
    """Return the loaded pictures, or the errors."""
    dataset = BuiltDatasets(cfg, ()).build_phase('train')
    guard_dataset(dataset, cfg, is_training=True, skip_unreadable=False)
    dataset.pipeline.are_stated_masks_checked = False
    results = []
    for index in range(len(dataset)):
        try:
            results.append(dataset[index])
        except DataError as error:
            results.append(error)
    return results
