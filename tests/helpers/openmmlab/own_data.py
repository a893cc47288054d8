"""A user's small data: pictures, COCO files, label PNGs, and command lines for trainings."""

import json
from pathlib import Path

import cv2
import numpy as np

from helpers import ROOT

CONFIGS = ROOT / 'configs' / 'demo'
DETECTION = CONFIGS / 'mask-rcnn_swin-nano_fpn_own.py'
SEGMENTATION = CONFIGS / 'swin-nano_upernet_own.py'
SIZE = 48
SIDE = 96  # of the model's input
COUNTS = {'train': 4, 'val': 2}


def make_own_data(root: Path) -> Path:
    """Write pictures of a nut, a bright square on dark ground."""
    rng = np.random.default_rng(0)
    for split, number in COUNTS.items():
        for folder in ('images', 'labels'):
            (root / folder / split).mkdir(parents=True, exist_ok=True)
        coco = dict(images=[], annotations=[], categories=[dict(id=3, name='nut'), dict(id=7, name='bolt')])
        for i in range(number):
            x, y, side = 4 + i, 6 + i, 24
            picture = rng.integers(0, 80, (SIZE, SIZE, 3), np.uint8)
            picture[y : y + side, x : x + side] += 150
            label = np.zeros((SIZE, SIZE), np.uint8)
            label[y : y + side, x : x + side] = 1
            cv2.imwrite(str(root / 'images' / split / f'{i}.png'), picture)
            cv2.imwrite(str(root / 'labels' / split / f'{i}.png'), label)
            corners = [x, y, x + side, y, x + side, y + side, x, y + side]
            coco['images'].append(dict(id=i, file_name=f'{i}.png', height=SIZE, width=SIZE))
            coco['annotations'].append(
                dict(id=i + 1, image_id=i, category_id=3 + 4 * (i % 2), bbox=[x, y, side, side], area=side * side,
                     iscrowd=0, segmentation=[corners])
            )  # fmt: skip
        write_coco(root, split, coco)
    return root


def read_coco(root: Path, split: str = 'train') -> dict:
    return json.loads((root / f'{split}.json').read_text())


def write_coco(root: Path, split: str, coco: dict) -> None:
    (root / f'{split}.json').write_text(json.dumps(coco))


def detection(root: Path, *more: str) -> list:
    """Return config and options for a short run of a detector on the data."""
    named = [f'own_data.{split}.annotations={split}.json' for split in COUNTS]
    return [DETECTION, '--cfg-options', f'own_data.root={root}', *named, 'train_cfg.max_epochs=1',
            'default_hooks.checkpoint.interval=1', f'train_dataloader.dataset.pipeline.2.scale={SIDE}', *_small(),
            *more]  # fmt: skip


def segmentation(root: Path, *more: str) -> list:
    """Return config and options for a short run of a segmentor on the data."""
    return [SEGMENTATION, '--cfg-options', f'own_data.root={root}', 'own_data.classes=[ground,nut]',
            'train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2',
            'train_dataloader.batch_size=2', f'train_dataloader.dataset.pipeline.3.crop_size=({SIDE},{SIDE})',
            f'model.data_preprocessor.size=({SIDE},{SIDE})', *_small(), *more]  # fmt: skip


def _small() -> list[str]:
    loaders = [f'{loader}_dataloader' for loader in ('train', 'val', 'test')]
    return [
        'model.backbone.depths=[1,1,1,1]',
        'default_hooks.logger.interval=1',
        *(f'{loader}.dataset.pipeline.1.scale={SIDE}' for loader in loaders[1:]),
        *(f'{loader}.{option}' for loader in loaders for option in ('num_workers=0', 'persistent_workers=False')),
    ]
