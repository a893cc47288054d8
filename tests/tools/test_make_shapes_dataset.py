"""The shapes data set: a seed gives the same bytes, and both kinds of annotation agree."""

import json

import cv2
import numpy as np
from helpers.in_process import run_well
from pycocotools import mask as coco_mask


def make(out, *arguments):
    run_well('tools/make_shapes_dataset.py', out, *arguments)
    return {path.relative_to(out): path.read_bytes() for path in sorted(out.rglob('*')) if path.is_file()}


def test_a_seed_gives_the_same_bytes(tmp_path):
    small = ('--train', '3', '--val', '2', '--seed', '5')
    first, again = make(tmp_path / 'a', *small), make(tmp_path / 'b', *small)
    assert first == again
    assert make(tmp_path / 'c', '--train', '3', '--val', '2', '--seed', '6') != first
    larger = make(tmp_path / 'd', '--train', '5', '--val', '2', '--seed', '5')
    for path in first:
        if path.suffix == '.png':
            assert larger[path] == first[path]


def test_instances_labels_and_pictures_agree(tmp_path):
    make(tmp_path, '--train', '4', '--val', '4', '--shape', '96')
    data = json.loads((tmp_path / 'annotations' / 'instances_train.json').read_text())
    assert len(data['images']) == 4
    assert len(data['categories']) == 4
    for image in data['images']:
        assert cv2.imread(str(tmp_path / 'images' / 'train' / image['file_name'])).shape == (96, 96, 3)
        labels = cv2.imread(str(tmp_path / 'labels' / 'train' / image['file_name']), cv2.IMREAD_GRAYSCALE)
        painted = np.zeros_like(labels)
        for annotation in data['annotations']:
            if annotation['image_id'] == image['id']:
                mask = coco_mask.decode(annotation['segmentation']).astype(bool)
                assert mask.sum() == annotation['area'] >= 64
                assert not painted[mask].any()  # visible parts do not overlap
                painted[mask] = annotation['category_id']
        assert (painted == labels).all()


def test_crops_show_more_of_their_class_than_of_any_other(tmp_path):
    make(tmp_path, '--train', '1', '--val', '12', '--shape', '96', '--crops')
    lines = (tmp_path / 'annotations' / 'crops_val.txt').read_text().splitlines()
    shapes = json.loads((tmp_path / 'annotations' / 'instances_val.json').read_text())
    names = [category['name'] for category in shapes['categories']]
    assert 12 <= len(lines) < len(shapes['annotations'])  # covered shapes are left out
    for line in lines:
        name, label = line.split()
        folder, _, file = name.partition('/')
        assert folder == names[int(label)]
        crop = cv2.imread(str(tmp_path / 'crops' / 'val' / name))
        side = len(crop)
        picture, labels = (cv2.imread(str(tmp_path / of / 'val' / f'{file[:6]}.png')) for of in ('images', 'labels'))
        _, _, _, (x, y) = cv2.minMaxLoc(-cv2.matchTemplate(picture, crop, cv2.TM_SQDIFF))
        assert (picture[y : y + side, x : x + side] == crop).all()
        seen = np.bincount(labels[y : y + side, x : x + side, 0].ravel(), minlength=5)[1:]
        assert seen[int(label)] > 0.3 * seen.sum()
    assert len(list(tmp_path.glob('crops/val/*/*'))) == len(lines)
