"""Pass invalid annotations to mmdet and pycocotools in every possible way, in a separate process.

    python tests/helpers/openmmlab/bad_annotations.py FOLDER

prints a line of JSON for every case and way. Without a check the process dies, and the lines end.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

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
SHORT = {
    'an empty polygon': [[]],
    'two points beside another': [SQUARE, [4, 6, 28, 30]],
}

ABSENT = {'no polygons': [], 'null': None}

# Fields of an object.
OBJECTS = {
    'NaN in bbox': dict(bbox=[4, 6, NAN, 24]),
    'three numbers in bbox': dict(bbox=[4, 6, 24]),
    'null for bbox': dict(bbox=None),
    'a list for image_id': dict(image_id=[0]),
    'the id of another': dict(id=1),
}

# Fields of an image, and of a category.
IMAGES = {
    'null for file_name': dict(file_name=None),
    'a negative height': dict(height=-SIDE),
}
CATEGORIES = {
    'the name of another': dict(name='bolt'),
    'the id of another category': dict(id=7),
}

# Whole lists and files.
TABLES = {
    'a number among the objects': lambda coco: coco['annotations'].append(5),
    'an object for the objects': lambda coco: coco.update(annotations={}),
    'no categories': lambda coco: coco.update(categories=[]),
}


def cases():
    """Yield (name, change to an annotation file, text in the error). Short polygons fail in evaluation."""
    for name, mask in {**MASKS, **SHORT, **ABSENT}.items():
        yield f'mask: {name}', changed('annotations', 0, dict(segmentation=mask)), 'annotation 10 '
    for name, change in OBJECTS.items():
        yield f'object: {name}', changed('annotations', 0, change), 'annotation'
    for name, change in IMAGES.items():
        yield f'image: {name}', changed('images', 0, change), 'image'
    for name, change in CATEGORIES.items():
        yield f'category: {name}', changed('categories', 0, change), 'categor'
    for name, change in TABLES.items():
        yield f'list: {name}', change, ''


def changed(table, index, change):
    return lambda coco: coco[table][index].update(change)


def good_coco(number=2):
    """Return pictures with a square. Squares alternate between polygons and RLE."""
    return dict(
        images=[dict(id=i, file_name=f'{i}.png', height=SIDE, width=SIDE) for i in range(number)],
        annotations=[
            dict(id=10 if i == 0 else i, image_id=i, category_id=3, bbox=[4, 6, 24, 24], area=576, iscrowd=0,
                 segmentation=[SQUARE] if i % 2 == 0 else rle(COUNTS))
            for i in range(number)
        ],
        categories=[dict(id=3, name='nut'), dict(id=7, name='bolt')],
    )  # fmt: skip


def make_data(root, coco):
    import cv2

    (root / 'images').mkdir(parents=True)
    for i in range(2):
        cv2.imwrite(str(root / 'images' / f'{i}.png'), np.full((SIDE, SIDE, 3), 99, np.uint8))
    path = root / 'coco.json'
    path.write_text(json.dumps(coco))
    return path


def config(root):
    """Return the config of a detector's data, with masks for training and test."""
    from mmengine.config import Config

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


def runner_of(cfg):
    """Return the parts of a Runner that read annotations: data loader and evaluator."""
    import logging

    from mmengine.evaluator import Evaluator
    from mmengine.runner import Runner

    return SimpleNamespace(
        cfg=cfg, logger=logging.getLogger('bad_annotations'), register_hook=lambda hook: None,
        build_dataloader=Runner.build_dataloader, build_evaluator=Evaluator,
    )  # fmt: skip


def train(cfg):
    from swin_backbone.openmmlab.data.guard import guard_runner

    runner = runner_of(cfg)
    guard_runner(runner)
    return list(runner.build_dataloader(cfg.train_dataloader))


def evaluate(cfg):
    """Score perfect predictions."""
    import torch
    from pycocotools import mask as coco_mask

    from swin_backbone.openmmlab.data.guard import guard_runner

    runner = runner_of(cfg)
    guard_runner(runner)
    evaluator = runner.build_evaluator(cfg.val_evaluator)
    evaluator.dataset_meta = dict(classes=('nut', 'bolt'))
    pixels = np.zeros((SIDE, SIDE, 1), np.uint8, order='F')
    pixels[6:30, 4:28] = 1
    for i in range(2):
        found = dict(
            bboxes=torch.tensor([[4.0, 6, 28, 30]]), scores=torch.ones(1), labels=torch.zeros(1, dtype=torch.long),
            masks=coco_mask.encode(pixels),
        )  # fmt: skip
        evaluator.process([dict(img_id=i, ori_shape=(SIDE, SIDE), pred_instances=found)])
    return evaluator.evaluate(2)


def browse(cfg):
    """Return the loaded pictures, or the errors."""
    from swin_backbone.openmmlab.data.guard import build_dataset
    from swin_backbone.openmmlab.errors import DataError

    dataset = build_dataset(cfg, 'train')
    found = []
    for index in range(len(dataset)):
        try:
            found.append(dataset[index])
        except DataError as error:
            found.append(error)
    return found


def check(cfg):
    from swin_backbone.openmmlab.data.check_data import check_data

    return check_data(cfg)


def main():
    import contextlib
    import io

    from mmdet.utils import register_all_modules

    from swin_backbone.openmmlab.errors import DataError

    register_all_modules()
    for number, (name, change, named) in enumerate(cases()):
        coco = good_coco()
        change(coco)
        root = Path(sys.argv[1]) / str(number)
        make_data(root, coco)
        for way in (check, train, evaluate, browse):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    found = way(config(root))
                if way is check:
                    said = [sentence for report in found for sentence in report.sentences(report.errors)]
                elif way is browse:
                    said = [str(error) for error in found if isinstance(error, DataError)]
                else:
                    said = []
                kind = 'found'
            except Exception as error:
                said, kind = [str(error)], type(error).__name__
            print(json.dumps(dict(case=name, way=way.__name__, kind=kind, said=said, named=named)), flush=True)


if __name__ == '__main__':
    main()
