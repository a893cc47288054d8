"""Write a few pictures in common layouts of data folders."""

import json
from pathlib import Path

import cv2
import numpy as np

SIZE = 64
COUNTS = {'train': 4, 'val': 2}
NAMES = ['nut', 'bolt']


def scenes_of(split):
    """Yield (name, picture (H, W, 3), boxes (x, y, side, class)). A picture has a square of every class."""
    rng = np.random.default_rng(split == 'val')
    for index in range(COUNTS[split]):
        picture = rng.integers(0, 80, (SIZE, SIZE, 3), np.uint8)
        boxes = [(4 + index, 6, 24, 0), (34, 32 - index, 26, 1)]
        for x, y, side, kind in boxes:
            picture[y : y + side, x : x + side, kind] += 150
        yield f'{split}_{index}', picture, boxes


def scenes(train='train', val='val'):
    """Return (folder of the split, name, picture, boxes) of all scenes."""
    return [(folder, *scene) for split, folder in zip(COUNTS, (train, val)) for scene in scenes_of(split)]


def write_picture(root, name, picture, suffix='.jpg'):
    path = root / f'{name}{suffix}'
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), picture)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def write_lists(folder, names, end=''):
    """Write a file of names for each split."""
    for split, several in names.items():
        write(folder / f'{split}.txt', ''.join(f'{name}{end}\n' for name in several))


def to_coco(pictures, first_image=1, first_object=1, class_ids=(1, 2), box_only=False, **more):
    """Return the content of a COCO JSON of (file name, boxes)."""
    objects = [(index, box) for index, (_, boxes) in enumerate(pictures) for box in boxes]
    return dict(
        info=dict(description=''), licenses=[],
        images=[dict(id=index + first_image, width=SIZE, height=SIZE, file_name=name)
                for index, (name, _) in enumerate(pictures)],
        categories=[dict(id=number, name=name, supercategory='') for number, name in zip(class_ids, NAMES)],
        annotations=[
            dict(id=number + first_object, image_id=index + first_image, category_id=class_ids[kind],
                 bbox=[x, y, side, side], area=side * side, iscrowd=0,
                 segmentation=[] if box_only else [[x, y, x + side, y, x + side, y + side, x, y + side]], **more)
            for number, (index, (x, y, side, kind)) in enumerate(objects)
        ],
    )  # fmt: skip


def to_yolo(boxes, outlines=False):
    """Return lines of boxes, or of outlines."""
    lines = []
    for x, y, side, kind in boxes:
        left, top, width = x / SIZE, y / SIZE, side / SIZE
        corners = [left, top, left + width, top, left + width, top + width, left, top + width]
        values = corners if outlines else [left + width / 2, top + width / 2, width, width]
        lines.append(' '.join(map(str, [kind, *values])) + '\n')
    return ''.join(lines)


def to_voc(name, boxes):
    objects = ''.join(
        f'<object><name>{NAMES[kind]}</name><truncated>0</truncated><occluded>0</occluded><difficult>0</difficult>'
        f'<bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + side + 1:.2f}</xmax>'
        f'<ymax>{y + side + 1:.2f}</ymax></bndbox><attributes></attributes></object>'
        for x, y, side, kind in boxes
    )
    return f'<annotation><folder></folder><filename>{name}.jpg</filename>{objects}</annotation>'


def to_labels(boxes, value=lambda kind: kind + 1):
    """Return 0 for background, and `value(class)` for a class: (H, W)."""
    labels = np.zeros((SIZE, SIZE), np.uint8)
    for x, y, side, kind in boxes:
        labels[y : y + side, x : x + side] = value(kind)
    return labels


def coco(root, split_folders=True):
    """Write images/{train,val} and annotations/instances_{train,val}.json, or a single file without `split_folders`."""
    files = {}
    for split, name, picture, boxes in scenes():
        write_picture(root / 'images' / (split if split_folders else ''), name, picture)
        files.setdefault(f'instances_{split}' if split_folders else 'instances', []).append((f'{name}.jpg', boxes))
    for name, pictures in files.items():
        write(root / 'annotations' / f'{name}.json', to_coco(pictures, class_ids=(3, 7)))
    return root


def yolo(root, outlines=False):
    """Write images/{train,val}, labels/{train,val} and data.yaml. With segmentation, outlines replace boxes."""
    for split, name, picture, boxes in scenes():
        write_picture(root / 'images' / split, name, picture)
        write(root / 'labels' / split / f'{name}.txt', to_yolo(boxes, outlines))
    write(root / 'data.yaml', 'path: .\ntrain: images/train\nval: images/val\nnames: {0: nut, 1: bolt}\n')
    return root


def voc(root):
    """Write JPEGImages, Annotations, and ImageSets/Main/{train,val}.txt."""
    for split in COUNTS:
        for name, picture, boxes in scenes_of(split):
            write_picture(root / 'JPEGImages', name, picture)
            write(root / 'Annotations' / f'{name}.xml', to_voc(name, boxes))
        write_lists(root / 'ImageSets' / 'Main', {split: [name for name, *_ in scenes_of(split)]})
    return root


def labels(root, value=lambda kind: kind + 1):
    """Write img_dir/{train,val} and ann_dir/{train,val}: see `to_labels`."""
    for split, name, picture, boxes in scenes():
        write_picture(root / 'img_dir' / split, name, picture)
        write_picture(root / 'ann_dir' / split, name, to_labels(boxes, value), '.png')
    write(root / 'classes.txt', 'ground\nnut\nbolt\n')
    return root


def classes(root):
    """Write {train,val}/{nut,bolt}: a picture has the class of one of its squares."""
    for split in COUNTS:
        for index, (name, picture, boxes) in enumerate(scenes_of(split)):
            write_picture(root / split / NAMES[boxes[index % 2][3]], name, picture)
    return root


LAYOUTS = dict(coco=coco, yolo=yolo, voc=voc, labels=labels, classes=classes)


def made(kind, folder, **how):
    root = Path(folder) / kind
    root.mkdir(parents=True)
    return LAYOUTS[kind](root, **how)
