"""Pictures and the files of their labels: which belong together."""

from pathlib import Path

import pytest
from helpers.openmmlab import layouts
from helpers.openmmlab.own_folders import BOXES, fill, read

from swin_backbone.checks import DataError
from swin_backbone.workbench.data.prepare.pairs import pair_labels


def paths(text):
    return [Path(name) for name in text.split()]


@pytest.mark.parametrize(('files', 'expected', 'unlabelled', 'unused'), [
    ('images_2021/x.jpg labels_2020/x.png', '', 'images_2021/x.jpg', 'labels_2020/x.png'),
    ('images_2021/x.jpg labels_2021/x.png', 'images_2021/x.jpg labels_2021/x.png', '', ''),
    ('images_a/x.jpg images_b/x.jpg labels_a/x.png labels_b/x.png',
     'images_a/x.jpg labels_a/x.png images_b/x.jpg labels_b/x.png', '', ''),
    ('images_a/x.jpg images_b/x.jpg labels_a/x.png', 'images_a/x.jpg labels_a/x.png', 'images_b/x.jpg', ''),
    ('images_a/x.jpg images_b/y.jpg labels_b/x.png', '', 'images_a/x.jpg images_b/y.jpg', 'labels_b/x.png'),
    ('original_images/x.jpg label_images_semantic/x.png', 'original_images/x.jpg label_images_semantic/x.png', '', ''),
    ('Images/x.jpg Labels/x.png', 'Images/x.jpg Labels/x.png', '', ''),
    ('Site/IMAGES/x.jpg site/labels/x.png', 'Site/IMAGES/x.jpg site/labels/x.png', '', ''),
    ('images/x.jpg masks/x.png masks_color/x.png', 'images/x.jpg masks/x.png', '', 'masks_color/x.png'),
    ('images_jpg/x.jpg masks_png/x.png', 'images_jpg/x.jpg masks_png/x.png', '', ''),
    ('images/train2017/x.jpg annotations/train/x.png', 'images/train2017/x.jpg annotations/train/x.png', '', ''),
    ('img_512/x.jpg mask/x.png', 'img_512/x.jpg mask/x.png', '', ''),
    ('img_512/x.jpg mask_256/x.png', '', 'img_512/x.jpg', 'mask_256/x.png'),
    ('leftImg8bit/train/ulm/x_leftImg8bit.png gtFine/train/ulm/x_gtFine_labelIds.png',
     'leftImg8bit/train/ulm/x_leftImg8bit.png gtFine/train/ulm/x_gtFine_labelIds.png', '', ''),
    # Names that end as those of pictures or labels, and are equal
    ('images/x_rgb.jpg labels/x_rgb.png', 'images/x_rgb.jpg labels/x_rgb.png', '', ''),
    ('images/x_L.jpg images/x_R.jpg labels/x_L.png labels/x_R.png',
     'images/x_L.jpg labels/x_L.png images/x_R.jpg labels/x_R.png', '', ''),
    ('images/x_L.png images/x_R.png labels/x_L.png labels/x_R.png',
     'images/x_L.png labels/x_L.png images/x_R.png labels/x_R.png', '', ''),
    ('images/x.png images/x_mask.png', 'images/x.png images/x_mask.png', '', ''),
    ('x_sat.jpg x_mask.png', 'x_sat.jpg x_mask.png', '', ''),
    ('images/x_rgb.jpg images/x.jpg labels/x_rgb.png labels/x.png',
     'images/x.jpg labels/x.png images/x_rgb.jpg labels/x_rgb.png', '', ''),
])  # fmt: skip
def test_pairs_are_of_one_set(files, expected, unlabelled, unused, record_fault):
    pairs, without_labels, without_picture = pair_labels(paths(files))
    assert pairs == dict(zip(paths(expected)[::2], paths(expected)[1::2]))
    assert (without_labels, without_picture) == (paths(unlabelled), paths(unused))
    record_fault('bad_data')


def test_several_labels_of_a_picture_are_an_error(record_fault):
    with pytest.raises(DataError, match=r'images/x.jpg has several files of labels: labels/x.png, labels/x_mask.png'):
        pair_labels(paths('images/x.jpg labels/x.png labels/x_mask.png'))
    record_fault('bad_data')


@pytest.mark.parametrize('names', [('images_2021', 'labels_2021'), ('images_2021', 'labels_2020'), ('img', 'labels_b')])
@pytest.mark.parametrize('layout', ['voc', 'yolo', 'labelme'])
def test_objects_of_another_set_are_not_taken(layout, names, tmp_path, record_fault):
    for name, picture, boxes in layouts.scenes_of('train'):
        layouts.write_picture(tmp_path / names[0], name, picture)
        folder = tmp_path / names[1]
        if layout == 'voc':
            layouts.write(folder / f'{name}.xml', layouts.to_voc(name, boxes))
        elif layout == 'yolo':
            layouts.write(folder / f'{name}.txt', layouts.to_yolo(boxes))
        else:
            shapes = [dict(label='nut', points=[[1, 1], [9, 1], [9, 9]])]
            layouts.write(folder / f'{name}.json', dict(shapes=shapes, imagePath=f'{name}.jpg'))
    if names[1] == 'labels_2020':
        with pytest.raises(DataError, match=r'picture|no annotations'):
            fill(BOXES, tmp_path, tmp_path / 'work')
    else:
        cfg, _ = fill(BOXES, tmp_path, tmp_path / 'work')
        assert len(read(cfg)['annotations']) == 3 * (1 if layout == 'labelme' else 2)
    record_fault('bad_data')
