"""Write a few pictures in common layouts of data folders."""

import json
from pathlib import Path

import cv2
import numpy as np

SIZE = 64
COUNTS = {'train': 4, 'val': 2}
NAMES = ['nut', 'bolt']


def scenes(split):
    """Yield (name, picture (H, W, 3), boxes (x, y, side, class)). A picture has a square of every class."""
    rng = np.random.default_rng(split == 'val')
    for index in range(COUNTS[split]):
        picture = rng.integers(0, 80, (SIZE, SIZE, 3), np.uint8)
        boxes = [(4 + index, 6, 24, 0), (34, 32 - index, 26, 1)]
        for x, y, side, kind in boxes:
            picture[y : y + side, x : x + side, kind] += 150
        yield f'{split}_{index}', picture, boxes


def write_picture(root, name, picture, suffix='.jpg'):
    path = root / f'{name}{suffix}'
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), picture)


def coco(root, split_folders=True):
    """Write images/{train,val} and annotations/instances_{train,val}.json, or a single file without `split_folders`."""
    data = {}
    for split in COUNTS:
        images, objects = data.setdefault(split if split_folders else 'all', ([], []))
        for name, picture, boxes in scenes(split):
            write_picture(root / 'images', f'{split}/{name}' if split_folders else name, picture)
            images.append(dict(id=len(images) + 1, file_name=f'{name}.jpg', height=SIZE, width=SIZE))
            objects += [
                dict(id=len(objects) + 1 + k, image_id=len(images), category_id=3 + 4 * kind, bbox=[x, y, side, side],
                     area=side * side, iscrowd=0,
                     segmentation=[[x, y, x + side, y, x + side, y + side, x, y + side]])
                for k, (x, y, side, kind) in enumerate(boxes)
            ]  # fmt: skip
    categories = [dict(id=3 + 4 * kind, name=name) for kind, name in enumerate(NAMES)]
    (root / 'annotations').mkdir()
    for split, (images, objects) in data.items():
        text = json.dumps(dict(images=images, annotations=objects, categories=categories))
        (root / 'annotations' / ('instances.json' if split == 'all' else f'instances_{split}.json')).write_text(text)
    return root


def yolo(root, outlines=False):
    """Write images/{train,val}, labels/{train,val} and data.yaml. With segmentation, outlines replace boxes."""
    for split in COUNTS:
        for name, picture, boxes in scenes(split):
            write_picture(root / 'images' / split, name, picture)
            lines = []
            for x, y, side, kind in boxes:
                left, top, width = x / SIZE, y / SIZE, side / SIZE
                corners = [left, top, left + width, top, left + width, top + width, left, top + width]
                values = corners if outlines else [left + width / 2, top + width / 2, width, width]
                lines.append(' '.join(map(str, [kind, *values])))
            path = root / 'labels' / split / f'{name}.txt'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('\n'.join(lines) + '\n')
    (root / 'data.yaml').write_text('path: .\ntrain: images/train\nval: images/val\nnames: {0: nut, 1: bolt}\n')
    return root


def voc(root):
    """Write JPEGImages, Annotations, and ImageSets/Main/{train,val}.txt."""
    for folder in ('Annotations', 'ImageSets/Main'):
        (root / folder).mkdir(parents=True)
    for split in COUNTS:
        names = []
        for name, picture, boxes in scenes(split):
            names.append(name)
            write_picture(root / 'JPEGImages', name, picture)
            objects = ''.join(
                f'<object><name>{NAMES[kind]}</name><difficult>0</difficult><bndbox><xmin>{x + 1}</xmin>'
                f'<ymin>{y + 1}</ymin><xmax>{x + side + 1}</xmax><ymax>{y + side + 1}</ymax></bndbox></object>'
                for x, y, side, kind in boxes
            )
            text = f'<annotation><filename>{name}.jpg</filename>{objects}</annotation>'
            (root / 'Annotations' / f'{name}.xml').write_text(text)
        (root / 'ImageSets' / 'Main' / f'{split}.txt').write_text('\n'.join(names) + '\n')
    return root


def labels(root, value=lambda kind: kind + 1):
    """Write img_dir/{train,val} and ann_dir/{train,val}. Labels are 0 for background and `value(class)` for a class."""
    for split in COUNTS:
        for name, picture, boxes in scenes(split):
            write_picture(root / 'img_dir' / split, name, picture)
            label = np.zeros((SIZE, SIZE), np.uint8)
            for x, y, side, kind in boxes:
                label[y : y + side, x : x + side] = value(kind)
            write_picture(root / 'ann_dir' / split, name, label, '.png')
    (root / 'classes.txt').write_text('ground\nnut\nbolt\n')
    return root


LAYOUTS = dict(coco=coco, yolo=yolo, voc=voc, labels=labels)


def made(kind, folder, **how):
    root = Path(folder) / kind
    root.mkdir(parents=True)
    return LAYOUTS[kind](root, **how)
