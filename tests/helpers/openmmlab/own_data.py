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
    """Return a config and options for a short run of a detector on the data."""
    try:
        names = tuple(category['name'] for category in read_coco(root)['categories'])
    except (KeyError, OSError, TypeError, ValueError):  # of a test with wrong annotations
        names = 'nut', 'bolt'
    palette = [(10 * number, 0, 200) for number in range(len(names))]

    def loader(split: str) -> str:
        prefix = dict(img=f'images/{split}')
        data = dict(data_root=str(root), ann_file=f'{split}.json', data_prefix=prefix,
                    metainfo=dict(classes=names, palette=palette))  # fmt: skip
        return f'dict(dataset={data!r})'

    number = dict(num_classes=len(names))
    path = write_config(root, DETECTION, f'''
model = dict(roi_head=dict(bbox_head={number}, mask_head={number}))
train_dataloader, val_dataloader, test_dataloader = {loader('train')}, {loader('val')}, {loader('val')}
val_evaluator = test_evaluator = dict(ann_file={str(root / "val.json")!r})
''')  # fmt: skip
    return [path, '--cfg-options', 'train_cfg.max_epochs=1', 'default_hooks.checkpoint.interval=1',
            f'train_dataloader.dataset.pipeline.2.scale={SIDE}', *_small(), *more]  # fmt: skip


def detection_of(root: Path, *more: str) -> list:
    """Return the same with `--data`."""
    return [DETECTION, '--data', root, *detection(root, *more)[1:]]


def segmentation(
    root: Path, *more: str, classes: tuple = ('ground', 'nut'), ignored: int = 255, **settings: object
) -> list:
    """Return a config and options for a short run of a segmentor on the data.

    Args:
        settings: of BaseSegDataset.
    """

    def loader(split: str) -> str:
        prefix = dict(img_path=f'images/{split}', seg_map_path=f'labels/{split}')
        palette = [[10 * number, 0, 200] for number in range(len(classes))]
        data = dict(data_root=str(root), data_prefix=prefix, metainfo=dict(classes=classes, palette=palette),
                    ignore_index=ignored, **settings)  # fmt: skip
        return f'dict(dataset={data!r})'

    head = dict(num_classes=len(classes), ignore_index=ignored)
    path = write_config(root, SEGMENTATION, f'''
model = dict(decode_head={head}, auxiliary_head={head}, data_preprocessor=dict(seg_pad_val={ignored}))
train_dataloader, val_dataloader, test_dataloader = {loader('train')}, {loader('val')}, {loader('val')}
val_evaluator = test_evaluator = dict(ignore_index={ignored})
''')  # fmt: skip
    return [path, '--cfg-options', 'train_cfg.max_iters=2', 'train_cfg.val_interval=2',
            'default_hooks.checkpoint.interval=2', 'train_dataloader.batch_size=2',
            f'train_dataloader.dataset.pipeline.3.crop_size=({SIDE},{SIDE})',
            f'model.data_preprocessor.size=({SIDE},{SIDE})', *_small(), *more]  # fmt: skip


def write_config(root: Path, base: Path, text: str) -> Path:
    """Write a config of the same name into a folder beside the data, and return its path."""
    path = root.parent / f'{root.name}_configs' / base.name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'_base_ = {str(base)!r}\n{text}')
    return path


def _small() -> list[str]:
    loaders = [f'{loader}_dataloader' for loader in ('train', 'val', 'test')]
    return [
        'model.backbone.depths=[1,1,1,1]',
        'default_hooks.logger.interval=1',
        *(f'{loader}.dataset.pipeline.1.scale={SIDE}' for loader in loaders[1:]),
        *(f'{loader}.{option}' for loader in loaders for option in ('num_workers=0', 'persistent_workers=False')),
    ]
