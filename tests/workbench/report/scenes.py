"""Labels and predictions of made-up pictures."""

import contextlib
import io

import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

SIZE = (150, 200)


def as_coco(pictures, annotations, classes):
    truth = COCO()
    images = [dict(id=number, file_name=f'{number}.jpg', width=SIZE[1], height=SIZE[0]) for number in pictures]
    categories = [dict(id=2 * label + 5, name=f'c{label}') for label in range(classes)]
    truth.dataset = dict(images=images, annotations=annotations, categories=categories)
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
    return truth


def polygon(box):
    x, y, width, height = box
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


def annotation(number, image, label, box, crowd=0):
    return dict(id=number, image_id=image, category_id=2 * label + 5, bbox=box, area=box[2] * box[3], iscrowd=crowd,
                segmentation=polygon(box))  # fmt: skip


def result(image, label, box, score):
    rle = coco_mask.merge(coco_mask.frPyObjects(polygon(box), *SIZE))
    return dict(image_id=image, category_id=2 * label + 5, bbox=box, score=score, segmentation=rle)


def scene(seed, pictures=40, classes=4, crowd=0.0):
    """Return random labels and predictions, some of the wrong class or place. The ids of pictures are 1, 4, 7, ..."""
    rng, annotations, results = np.random.default_rng(seed), [], []
    for image in range(1, 3 * pictures, 3):
        for _ in range(rng.integers(0, 6)):
            box = np.array([*rng.uniform(0, 120, 2) * (1, 0.6), *rng.uniform(8, 70, 2)])
            label, is_crowd = int(rng.integers(classes)), int(rng.random() < crowd)
            annotations.append(annotation(len(annotations) + 1, image, label, box.tolist(), is_crowd))
            for _ in range(rng.integers(0, 4)):
                moved = box + rng.normal(0, rng.choice([1, 6, 14]), 4)
                moved[2:] = np.maximum(moved[2:], 2)
                other = label if rng.random() < 0.8 else int(rng.integers(classes))
                results.append(result(image, other, moved.tolist(), float(rng.random())))
        for _ in range(rng.integers(0, 3)):
            box = [*rng.uniform(0, 100, 2).tolist(), *rng.uniform(5, 40, 2).tolist()]
            results.append(result(image, int(rng.integers(classes)), box, float(0.7 * rng.random())))
    return as_coco(range(1, 3 * pictures, 3), annotations, classes), results
