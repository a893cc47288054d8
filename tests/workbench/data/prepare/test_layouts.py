"""`--data` with any config of mmdet or mmseg: layouts of folders, splits, classes, and errors."""

import os
import re
import shutil
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers import edited_json
from helpers.openmmlab import layouts
from helpers.openmmlab.own_folders import BOXES, LABELS, MASKS, boxes, fill, labels_of, read
from mmdet.registry import MODELS
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.structures import InstanceData
from mmseg.models import STDCHead
from pycocotools import mask as coco_mask

from swin_backbone.checks import DataError
from swin_backbone.outputs import mark_folder
from swin_backbone.workbench.data.check_data import check_data
from swin_backbone.workbench.data.datasets import BuiltDatasets
from swin_backbone.workbench.data.prepare import layouts as folders
from swin_backbone.workbench.data.prepare.config import set_num_classes
from swin_backbone.workbench.data.prepare.splits import draw_split

PANOPTIC = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py'


def test_labels_are_found_with_their_names(tmp_path):
    root = layouts.made('labels', tmp_path)
    path = root / 'img_dir' / 'train' / 'train_0.jpg'
    cv2.imwrite(str(path.with_suffix('.png')), cv2.imread(str(path)))
    path.unlink()  # pictures of several suffixes
    cfg, report = fill(LABELS, root, tmp_path / 'work')
    assert cfg.train_dataloader.dataset.metainfo.classes == ('ground', 'nut', 'bolt')
    assert cfg.model.decode_head.num_classes == cfg.model.auxiliary_head.num_classes == 3
    assert 'reduce_zero_label=True' not in str(cfg.train_dataloader)
    assert sorted(labels_of(cfg)) == ['train_0.png', 'train_1.jpg', 'train_2.jpg', 'train_3.jpg']
    assert '4 pictures in img_dir/train, labels in ann_dir/train' in report
    assert '3: ground, nut, bolt' in report


def test_the_pictures_of_a_json_are_below_its_folder_or_beside_it(tmp_path, monkeypatch):
    """The root of the file system is searched for a JSON there alone. Each folder is searched once."""
    searched = []
    options = dict(given_classes=None, with_masks=False, skip_unreadable=False)
    monkeypatch.setattr(folders, 'list_files', lambda root: (searched.append(root), ([], []))[1])
    (tmp_path / 'annotations').mkdir()
    monkeypatch.chdir(tmp_path / 'annotations')
    for path in ('/top/train.json', 'train.json', '../annotations/train.json', tmp_path / 'annotations' / 'train.json'):
        folders.list_data(Path(path), None, tmp_path / 'indices', **options)
    beside = Path('../annotations'), tmp_path, tmp_path / 'annotations', tmp_path
    assert searched == [Path('/top'), Path(), tmp_path, *beside]
    searched.clear()
    folders.list_data(tmp_path, tmp_path / 'train.json', tmp_path / 'indices', **options)
    assert searched == [tmp_path]


@pytest.mark.parametrize('outlines', [False, True])
def test_a_config_of_masks_takes_outlines_alone(outlines, tmp_path):
    cfg, _ = fill(MASKS, layouts.made('yolo', tmp_path, outlines=outlines), tmp_path / 'work')
    assert all(
        ('objects without a segmentation' in str(check.errors.counts)) != outlines
        for check in check_data(BuiltDatasets(cfg, ()))
    )
    assert cfg.model.roi_head.mask_head.num_classes == 2
    assert 'num_classes' not in cfg.model.rpn_head


def test_an_rle_is_trained_on_where_a_config_keeps_polygons(tmp_path, record_fault):
    root = layouts.made('coco', tmp_path)
    with edited_json(root / 'annotations' / 'instances_train.json') as data:
        for item in data['annotations']:
            (polygon,) = item['segmentation']
            item['segmentation'] = coco_mask.frPyObjects([polygon], layouts.SIZE, layouts.SIZE)[0]
            item['segmentation']['counts'] = item['segmentation']['counts'].decode()
    cfg, _ = fill(MASKS.replace('_1x', '_poly-1x'), root, tmp_path / 'work')
    assert check_data(BuiltDatasets(cfg, ()))[0].rows['objects trained on'] == str(len(data['annotations']))
    record_fault('bad_data')


def test_without_a_split_one_is_made_and_written_down(tmp_path):
    root = layouts.made('coco', tmp_path, split_folders=False)
    cfg, report = fill(BOXES, root, tmp_path / 'work')
    again, _ = fill(BOXES, root, tmp_path / 'elsewhere')
    train, val = read(cfg), read(cfg, 'val')
    assert (len(train['images']), len(val['images'])) == (5, 1)
    assert not {image['file_name'] for image in train['images']} & {image['file_name'] for image in val['images']}
    assert read(again, 'val')['images'] == val['images']
    assert 'a fifth of the pictures is for validation' in report
    assert str(tmp_path / 'work') in report


def test_pictures_and_annotations_may_lie_apart(tmp_path):
    root = layouts.made('labels', tmp_path)
    (tmp_path / 'elsewhere').mkdir()
    shutil.move(root / 'ann_dir', tmp_path / 'elsewhere' / 'truth')
    cfg, _ = fill(LABELS, root / 'img_dir', tmp_path / 'work', tmp_path / 'elsewhere' / 'truth')
    assert len(labels_of(cfg)) == 4
    root = layouts.made('coco', tmp_path)
    cfg, _ = fill(BOXES, root / 'annotations' / 'instances_train.json', tmp_path / 'work2')
    assert len(read(cfg, 'val')['images']) == 2


def test_a_panoptic_mask_former_pads_pictures_without_labels_of_pixels(tmp_path):
    """Its random scale makes pictures below the size to which a batch is padded."""
    cfg, _ = fill(PANOPTIC, layouts.made('coco', tmp_path), tmp_path / 'work')
    sample = DetDataSample(metainfo=dict(img_shape=(20, 30)))
    sample.gt_instances = InstanceData(masks=BitmapMasks(np.ones((1, 20, 30), np.uint8), 20, 30))
    batch = dict(inputs=[torch.zeros(3, 20, 30, dtype=torch.uint8)], data_samples=[sample])
    padded = MODELS.build(cfg.model.data_preprocessor)(batch, training=True)['data_samples'][0]
    assert padded.gt_instances.masks.masks.shape == (1, *padded.batch_input_shape)


@pytest.mark.parametrize('edges', ['STDCHead', 'mmseg.STDCHead', STDCHead])
def test_num_classes_follow_the_data_except_in_other_parts(edges):
    cfg = Config(dict(model=dict(
        rpn_head=dict(num_classes=1), bbox_head=[dict(num_classes=80), dict(num_classes=80)],
        panoptic_head=dict(loss_cls=dict(class_weight=[1.0] * 133 + [0.1])),
        decode_head=dict(num_classes=19, loss_decode=dict(class_weight=[0.8, 0.9, 1.1])),
        auxiliary_head=[dict(type=edges, num_classes=2), dict(num_classes=2, out_channels=1)],
    )))  # fmt: skip
    set_num_classes(cfg.model, 5)
    assert cfg.model.rpn_head.num_classes == 1
    assert [head.num_classes for head in cfg.model.bbox_head] == [5, 5]
    assert cfg.model.panoptic_head.loss_cls.class_weight == [1.0] * 5 + [0.1]
    assert cfg.model.decode_head.loss_decode.class_weight is None
    assert [head.num_classes for head in cfg.model.auxiliary_head] == [2, 5]
    assert cfg.model.auxiliary_head[1].out_channels == 5


def panoptic(root):
    for path in (root / 'annotations').iterdir():
        with edited_json(path) as data:
            segments = [dict(id=1, category_id=3, area=9, bbox=[0, 0, 3, 3], iscrowd=0)]
            data['annotations'] = [
                dict(image_id=image['id'], file_name='1.png', segments_info=segments) for image in data['images']
            ]
        path.rename(path.with_name(path.name.replace('instances', 'panoptic')))


def elsewhere(root):
    shutil.rmtree(root / 'images')
    layouts.write_picture(root / 'other', 'x', np.zeros((8, 8, 3), np.uint8))


def replaced(name, old, new):
    """Return a function that replaces a text in files."""

    def change(root):
        for path in root.glob(name):
            path.write_text(path.read_text().replace(old, new, 1) if old else new)

    return change


def yolo(text):
    return replaced('labels/train/train_0.txt', '', text)


def replaced_by(name, make):
    """Return a function that replaces a file."""

    def change(root):
        (root / name).unlink()
        make(root / name)

    return change


def listed(*several):
    """Return a function that writes lists of a split: folders, and names by split."""
    return lambda root: [layouts.write_lists(root / folder, names) for folder, names in several]


def twice(root, folder='images'):
    """Write a picture with the name of another."""
    layouts.write_picture(root / folder / 'train', 'train_0', np.zeros((64, 64, 3), np.uint8), '.png')


def in_both_json_files(root):
    with edited_json(root / 'annotations' / 'instances_train.json') as data:
        for image, name in zip(data['images'], ('val/val_0', 'train/train_1', 'train/train_2', 'train/train_3')):
            image['file_name'] = f'{name}.jpg'


FEW = dict(train=['train_1', 'val_0'], val=['train_0', 'val_1'])


def with_suffix(folder, suffix):
    return {split: [f'{folder}{name}{suffix}' for name in names] for split, names in FEW.items()}


SWAPPED = dict(train=FEW['val'], val=FEW['train'])
ALIASES = 'a0: &a0 [x, x]\n' + ''.join(f'a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n' for n in range(1, 60))


@pytest.mark.parametrize(('config', 'layout', 'spoil', 'message'), [
    (BOXES, 'coco', lambda root: shutil.rmtree(root / 'annotations'),
     'no annotations for a config of mmdet .*looked for a JSON.*; found 6 .jpg in images.*datumaro and supervision'),
    (LABELS, 'coco', None, 'no annotations for a config of mmseg .*looked for a PNG of labels for each picture'),
    (BOXES, 'coco', elsewhere, "names 4 pictures, as 'train_0.jpg', and below .* is no picture"),
    (BOXES, 'coco', lambda root: shutil.copy(root / 'annotations/instances_train.json', root / 'instances_train.json'),
     'several annotation files for training: .*name one: --data FILE'),
    (PANOPTIC, 'coco', panoptic, r"panoptic_train\.json has annotations without 'id'"),
    (BOXES, 'coco', lambda root: shutil.rmtree(root) or root.mkdir(), 'there is no picture below .* has nothing'),
    (BOXES, 'yolo', yolo('7 0.5 0.5 0.1 0.1\n'), r'train_0\.txt, line 1: the class is a .* from 0 to 1, got .7'),
    (BOXES, 'yolo', yolo('0 32 32 10 10\n'), r'train_0\.txt, line 1, takes shares of the picture, from 0 to 1'),
    (BOXES, 'yolo', yolo('0 0.5 0.5 0.1 0.1\n1 0.5\n'), r'train_0\.txt, line 2, takes CLASS X Y WIDTH HEIGHT'),
    (BOXES, 'yolo', replaced('data.yaml', 'images/train', 'annotations'),
     'none of the 6 pictures .* is among those that `train: annotations`'),
    (BOXES, 'voc', replaced('Annotations/train_0.xml', '<xmin>5</xmin>', ''), r'0\.xml: bndbox of object 0 takes'),
    (BOXES, 'voc', lambda root: (root / 'JPEGImages' / 'train_0.jpg').unlink(),
     r'train_0\.xml belongs to a picture of its name, and below .* there is no picture'),
    (BOXES, 'voc', replaced('Annotations/train_0.xml', '', '<annotation><object>'), r'0\.xml cannot be read as XML'),
    (BOXES, 'coco', in_both_json_files, r'1 pictures for training and for validation, as images/val/val_0\.jpg'),
    (BOXES, 'yolo', replaced('data.yaml', 'path: .', 'path: ..'), r'has `path: \.\.`, which is another folder'),
    (BOXES, 'yolo', twice, r'train_0\.jpg and .*train_0\.png share the labels .*train_0'),
    (BOXES, 'yolo', replaced('data.yaml', '', f'{ALIASES}train: *a59\nnames: [nut]\n'), r'data\.yaml cannot be read'),
    (BOXES, 'yolo', replaced_by('data.yaml', os.mkfifo), r'data\.yaml is a device, FIFO or socket'),
    (BOXES, 'yolo', replaced_by('data.yaml', lambda path: path.write_bytes(bytes(2**21))), 'at most 1,048,576'),
    (BOXES, 'yolo', replaced_by('images/train/train_0.jpg', os.mkfifo), r'train_0\.jpg is a device, FIFO or socket'),
    (LABELS, 'labels', partial(twice, folder='img_dir'), r'train_0\.jpg and .*train_0\.png share the labels .*train_0'),
    (LABELS, 'labels', listed(('ImageSets/Segmentation', dict(train=['train_0', 'train_1'], val=['train_1']))),
     'names 1 pictures for training and for validation'),
    (LABELS, 'labels', listed(('ImageSets/Segmentation', dict(train=['train_0'], val=['nobody']))),
     r'Segmentation/val\.txt names no picture below'),
    (LABELS, 'labels', listed(('a', FEW), ('b', SWAPPED)), r'the lists in .*a and .*b differ: keep those'),
])  # fmt: skip
def test_what_is_not_understood_is_said(config, layout, spoil, message, tmp_path, record_fault):
    root = layouts.made(layout, tmp_path)
    if spoil:
        spoil(root)
    with pytest.raises(ValueError, match=message) as error:
        fill(config, root, tmp_path / 'work')
    assert len(str(error.value)) < 600
    record_fault('bad_data')


def test_what_is_not_there_is_said(tmp_path):
    for data, annotations in ((tmp_path / 'nowhere', None), (tmp_path, tmp_path / 'nowhere')):
        with pytest.raises(ValueError, match=re.escape(f'there is no {str(tmp_path / "nowhere")!r}')):
            fill(BOXES, data, tmp_path / 'work', annotations)


@pytest.mark.parametrize(('config', 'layout'), [(BOXES, 'coco'), (BOXES, 'yolo'), (BOXES, 'voc'), (LABELS, 'labels')])
def test_results_are_never_read_as_data(config, layout, tmp_path, record_fault):
    """Labels of an earlier run, and pictures of the tools."""
    root = layouts.made(layout, tmp_path)
    before, _ = fill(config, root, tmp_path / 'work')
    fill(config, root, root / 'run1' / 'data')
    log = root / 'run2' / '20261124_030759'
    layouts.write_picture(log, 'curves', np.zeros((8, 8, 3), np.uint8), '.png')
    mark_folder(log)
    mark_folder(root / 'out')
    for name in ('overlays/train_0.jpg', 'labels/train_0.png', 'masks/train_0.png', 'a_mask.png', 'a.png'):
        path = root / 'out' / name
        layouts.write_picture(path.parent, path.stem, np.zeros((64, 64), np.uint8), path.suffix)
    (root / 'out' / 'results.json').write_bytes(b'[]')
    if layout == 'yolo':
        path = root / 'labels' / 'train' / 'train_0.txt'
        path.write_text('0 0.5 0.5 0.25 0.25\n')
    cfg, report = fill(config, root, root / 'run2' / 'data')
    assert re.search(r'commands: out, (run1.data, )?run2.20261124_030759', report)
    if config == LABELS:
        assert len(labels_of(cfg)) == 4
        assert len(labels_of(cfg, 'val')) == 2
        assert 'left out' not in report
    else:
        now, then = boxes(read(cfg)), boxes(read(before))
        assert len(now) == len(read(cfg)['images']) == 4
        assert (now == then) == (layout != 'yolo')
        if layout == 'yolo':
            assert now.pop('train_0.jpg') == [('nut', 24, 24, 16, 16)]
    record_fault('bad_data')


def through_links(root):
    """Links in place of folders, a link that leads back, and a name with a word of a split."""
    linked = root.parent / 'Bücher und Äpfel, 2024 (train)'
    linked.mkdir()
    (linked / 'back').symlink_to(linked)
    for path in root.iterdir():
        (linked / path.name).symlink_to(path)
    return linked


def all_in_one_folder(root):
    """Exports of darknet and LabelImg: text beside pictures, names in classes.txt, no split."""
    for path in [*root.rglob('*.jpg'), *root.rglob('*.txt')]:
        path.rename(root / path.name)
    (root / 'data.yaml').unlink()
    (root / 'classes.txt').write_text('nut\nbolt\n')
    return root


def beside_masks(root):
    """Masks, without a data.yaml: no background pictures."""
    (root / 'data.yaml').unlink()
    for path in list((root / 'images').rglob('*.jpg')):
        layouts.write_picture(root / 'masks' / path.parent.name, path.stem, np.zeros((64, 64), np.uint8), '.png')
    (root / 'classes.txt').write_text('nut\nbolt\n')
    return root


def with_pictures_of_nothing(root):
    """A picture without a file, a picture with an empty file, points of poses, upper case, Windows' ends of lines."""
    layouts.write_picture(root / 'images' / 'train', 'nothing_L', np.zeros((64, 64, 3), np.uint8), '.png')
    layouts.write_picture(root / 'images' / 'train', 'empty', np.zeros((64, 64, 3), np.uint8))
    (root / 'labels' / 'train' / 'empty.txt').write_text('')
    path = root / 'images' / 'train' / 'train_0.jpg'
    path.rename(path.with_suffix('.JPG'))
    path = root / 'labels' / 'train' / 'train_0.txt'
    path.write_bytes(path.read_bytes().replace(b'\n', b'\r\n'))
    path.rename(path.with_suffix('.TXT'))
    return root


def beside_other_files(root):
    """YAML about other subjects, before data.yaml in the alphabet."""
    (root / 'a.yaml').write_text('names: [somebody, else]\n')
    (root / 'b.yaml').write_text('key: !Ref value\n')
    (root / 'c.yml').write_text('---\nkey: 1\n---\nkey: 2\n')
    (root / 'c2.yml').write_bytes(b'key: \xe4\n')
    return root


def in_subfolders(root):
    """Names without folders in the JSON, an upper-case suffix, and an accent of two characters, as macOS writes it."""
    folder = root / 'images' / 'train'
    (folder / 'more').mkdir()
    (folder / 'train_0.jpg').rename(folder / 'more' / 'train_0.jpg')
    (folder / 'train_1.jpg').rename(folder / 'train_1.JPG')
    (root / 'images' / 'val' / 'val_0.jpg').rename(root / 'images' / 'val' / 'a\u0308.jpg')
    path = root / 'annotations' / 'instances_val.json'
    path.write_text(path.read_text().replace('val_0.jpg', '\u00e4.jpg'))
    return root


def with_other_categories(root):
    """Another order, other ids, and a class without objects in the JSON for validation."""
    with edited_json(root / 'annotations' / 'instances_val.json') as data:
        data['categories'] = [dict(id=3, name='bolt'), dict(id=5, name='pin'), dict(id=7, name='nut')]
        for item in data['annotations']:
            item['category_id'] = 10 - item['category_id']
    return root


def with_byte_order_marks(root):
    """Text files of Windows's programs."""
    for path in [path for path in root.rglob('*') if path.suffix in ('.json', '.txt', '.xml', '.yaml')]:
        path.write_text(path.read_text(), 'utf-16' if path.stem.endswith('train') else 'utf-8-sig')
    return root


def without_fields(root):
    """A script's JSON."""
    for path in (root / 'annotations').iterdir():
        with edited_json(path) as data:
            for item in data['annotations']:
                del item['iscrowd'], item['area'], item['id']
    return root


def in_a_folder_of_makesense(root):
    (root / 'labels').rename(root / 'labels_my-project-name_2024-05-01')
    return root


def with_numbers_for_names(root):
    for number, path in enumerate(sorted((root / 'Annotations').iterdir())):
        path.rename(path.with_name(f'{number:06d}.xml'))
    return root


@pytest.mark.parametrize(('layout', 'change', 'pictures'), [
    ('coco', in_subfolders, (4, 2)), ('coco', with_other_categories, (4, 2)),
    ('coco', without_fields, (4, 2)), ('yolo', in_a_folder_of_makesense, (4, 2)),
    ('voc', with_numbers_for_names, (4, 2)),
    *((layout, with_byte_order_marks, (4, 2)) for layout in ('coco', 'yolo', 'voc')),
    ('coco', through_links, (4, 2)), ('yolo', all_in_one_folder, (5, 1)), ('yolo', with_pictures_of_nothing, (6, 2)),
    ('yolo', beside_masks, (4, 2)), ('yolo', beside_other_files, (4, 2)),
])  # fmt: skip
def test_folders_as_people_have_them(layout, change, pictures, tmp_path, record_fault):
    def objects_of(cfg):
        results = {**boxes(read(cfg)), **boxes(read(cfg, 'val'))}
        return {Path(name).stem.replace('a\u0308', 'val_0'): objects for name, objects in results.items()}

    root = layouts.made(layout, tmp_path)
    expected = objects_of(fill(BOXES, root, tmp_path / 'before')[0])
    cfg, _ = fill(BOXES, change(root), tmp_path / 'work')
    assert (len(read(cfg)['images']), len(read(cfg, 'val')['images'])) == pictures
    assert objects_of(cfg) == expected
    assert not any(check.errors for check in check_data(BuiltDatasets(cfg, ())))
    record_fault('bad_data')
    assert sorted(cfg.train_dataloader.dataset.metainfo.classes) == ['bolt', 'nut']


def cityscapes(root):
    for kind, end in (('img_dir', '_leftImg8bit'), ('ann_dir', '_gtFine_labelTrainIds')):
        folder = root / ('leftImg8bit' if kind == 'img_dir' else 'gtFine')
        for path in sorted((root / kind).rglob('*.*')):
            target = folder / path.parent.name / 'ulm' / f'{path.stem}{end}{path.suffix}'
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            if kind == 'ann_dir':
                shutil.copy(target, target.with_name(f'{path.stem}_gtFine_labelIds.png'))
                shutil.copy(target, target.with_name(f'{path.stem}_gtFine_color.png'))
    return root


def side_by_side(root):
    """x.jpg and x.png in one folder, without a split."""
    for path in [*root.rglob('*.jpg'), *root.rglob('*.png')]:
        path.rename(root / path.name)
    return root


def by_their_ends(root):
    """x.jpg and x_mask.png."""
    for path in [*root.rglob('*.jpg'), *root.rglob('*.png')]:
        path.rename(path.parent.parent.parent / f'{path.stem}{"_mask" if path.suffix == ".png" else ""}{path.suffix}')
    return root


def ade(root):
    """images/training and annotations/validation, with a picture that has no labels."""
    for old, new in (('img_dir', 'images'), ('ann_dir', 'annotations')):
        (root / old).rename(root / new)
        (root / new / 'train').rename(root / new / 'training')
        (root / new / 'val').rename(root / new / 'validation')
    layouts.write_picture(root / 'images' / 'training', 'more', np.zeros((9, 9, 3), np.uint8))
    return root


@pytest.mark.parametrize(('change', 'pictures'), [
    (cityscapes, (4, 2)), (side_by_side, (5, 1)), (by_their_ends, (5, 1)), (ade, (4, 2)),
])  # fmt: skip
def test_labels_as_people_have_them(change, pictures, tmp_path):
    root = change(layouts.made('labels', tmp_path))
    cfg, report = fill(LABELS, root, tmp_path / 'work')
    for phase, number in zip(('train', 'val'), pictures):
        labels = labels_of(cfg, phase)
        assert len(labels) == number
        assert all(set(np.unique(values)) == {0, 1, 2} for values in labels.values())
    assert [line for line in report.splitlines() if 'left out' in line] == (
        ['  left out    1 pictures without labels, as images/training/more.jpg'] if change is ade else []
    )


@pytest.mark.parametrize(('layout', 'line'), [
    ('coco', 'left out    1 pictures without an entry in these annotation files, as images/train/more.jpg'),
    ('yolo', 'left out    1 text files without a picture, as .*/labels/val/more.txt'),
])  # fmt: skip
def test_what_has_no_partner_is_reported(layout, line, tmp_path, record_fault):
    root = layouts.made(layout, tmp_path)
    _, before = fill(BOXES, root, tmp_path / 'work')
    layouts.write_picture(root / 'images' / 'train', 'more', np.zeros((64, 64, 3), np.uint8))
    if layout == 'yolo':
        shutil.copy(root / 'labels/val/val_0.txt', root / 'labels/val/more.txt')
    _, report = fill(BOXES, root, tmp_path / 'work')
    assert re.search(line, report)
    assert 'left out' not in before
    record_fault('bad_data')


@pytest.mark.parametrize(('config', 'layout', 'kind', 'names'), [
    (BOXES, 'voc', 'ImageSets/Main', FEW),
    (BOXES, 'yolo', '.', with_suffix('/data/set/images/train/', '.jpg')),
    (BOXES, 'coco', '.', with_suffix('', '.jpg')),
    (LABELS, 'labels', 'ImageSets/Segmentation', FEW),
    (LABELS, 'labels', '.', with_suffix('/SegNet/img_dir/x/', '.jpg /SegNet/ann_dir/x.png')),
])  # fmt: skip
def test_lists_of_a_split_are_obeyed(config, layout, kind, names, tmp_path, record_fault):
    root = layouts.made(layout, tmp_path, **(dict(split_folders=False) if layout == 'coco' else {}))
    if layout == 'yolo':
        (root / 'data.yaml').write_text('names: [nut, bolt]\n')
    layouts.write_lists(root / kind, names)
    cfg, report = fill(config, root, tmp_path / 'work')
    for phase, expected in FEW.items():
        there = labels_of(cfg, phase) if config == LABELS else {
            image['file_name'].rpartition('/')[2] for image in read(cfg, phase)['images']
        }  # fmt: skip
        assert {name.removesuffix('.jpg') for name in there} == set(expected)
    assert '2 pictures that no list names' in report
    record_fault('bad_data')


def one_json(root):
    shutil.copy(root / 'annotations' / 'instances_val.json', root / 'annotations' / 'instances_train.json')


@pytest.mark.parametrize(('layout', 'change', 'pictures'), [
    ('coco', one_json, (1, 1)), ('yolo', replaced('data.yaml', 'images/val', 'images/train'), (3, 1)),
])  # fmt: skip
def test_equal_training_and_validation_are_overruled(layout, change, pictures, tmp_path, record_fault):
    root = layouts.made(layout, tmp_path)
    change(root)
    cfg, report = fill(BOXES, root, tmp_path / 'work')
    assert (len(read(cfg)['images']), len(read(cfg, 'val')['images'])) == pictures
    assert 'names the same pictures for training and for validation' in report
    assert 'a fifth of the pictures is for validation' in report
    record_fault('bad_data')


def test_values_that_do_not_count_from_0_take_names(tmp_path, record_fault):
    root = layouts.made('labels', tmp_path, value=lambda kind: (128, 255)[kind])
    (root / 'classes.txt').unlink()
    with pytest.raises(DataError, match=r"values 0, 128, and not 0 to 1: name them in .*'128 road'.*--classes NAME"):
        fill(LABELS, root, tmp_path / 'work')
    (root / 'classes.txt').write_text('0 ground\n128 nut\n255 bolt\n')
    cfg, report = fill(LABELS, root, tmp_path / 'work')
    assert cfg.train_dataloader.dataset.metainfo.classes == ('ground', 'nut', 'bolt')
    assert all(set(np.unique(values)) == {0, 1, 2} for values in labels_of(cfg).values())
    assert 'the values 0, 128, 255, numbered from 0' in report
    (root / 'classes.txt').write_text('128 nut\n255 bolt\n')
    with pytest.raises(DataError, match='names 2 classes, and the labels have the value 0'):
        fill(LABELS, root, tmp_path / 'work')
    record_fault('bad_data', 2)


def test_a_mistyped_class_is_a_warning_with_the_nearest(tmp_path, record_fault):
    """A mistyped class is in training beside many objects, or in validation alone."""
    root = layouts.made('coco', tmp_path)
    names = {3: 'person', 7: 'bird', 8: 'perosn', 9: 'brid'}
    for split, mistyped in (('train', 8), ('val', 9)):
        with edited_json(root / 'annotations' / f'instances_{split}.json') as data:
            data['categories'] = [dict(id=number, name=name) for number, name in names.items()]
            data['annotations'] = [dict(one, id=n) for n, one in enumerate(data['annotations'] * 6, 1)]
            data['annotations'][0]['category_id'] = mistyped
    cfg, _ = fill(BOXES, root, tmp_path / 'work')
    assert cfg.model.bbox_head.num_classes == 4
    warnings = check_data(BuiltDatasets(cfg, ()))[0].warnings.sentences()
    assert any('classes without training data: 1, as brid, nearest bird' in warning for warning in warnings)
    assert any('rare classes, maybe mistyped: 1, as perosn (1), nearest person (23)' in warning for warning in warnings)
    record_fault('bad_data', 2)


def test_the_size_of_an_xml_is_compared_with_its_picture(tmp_path, record_fault):
    root = layouts.made('voc', tmp_path)
    for name, width in (('train_0', 128), ('train_1', 0)):  # 0: the program did not know it
        path = root / 'Annotations' / f'{name}.xml'
        size = f'<size><width>{width}</width><height>64</height></size><object>'
        path.write_text(path.read_text().replace('<object>', size, 1))
    cfg, report = fill(BOXES, root, tmp_path / 'work')
    (line,) = check_data(BuiltDatasets(cfg, ()))[0].warnings.sentences()
    assert line.startswith('pictures of another size than their annotations say: 1, as ')
    assert line.endswith('train_0.jpg is 64x64, annotated as 128x64')
    assert '  warning     pictures of another size than their annotations say: 1, as JPEGImages/train_0.jpg' in report
    record_fault('bad_data')


def test_pictures_that_are_added_move_no_others_to_validation():
    before = draw_split(Path(f'{n}.jpg') for n in range(100))
    after = draw_split(Path(f'{n}.jpg') for n in range(105))
    assert len(set(before[1]) - set(after[1])) <= 5
    assert len(before[1]) == 20


def test_augmented_copies_of_a_picture_stay_together(record_fault):
    """Roboflow writes several copies of a picture: NAME_jpg.rf.HASH.jpg."""
    train, val = draw_split(Path(f'{n // 3}_jpg.rf.{n:032x}.jpg') for n in range(60))
    assert len(val) == 12
    assert not {path.name.partition('.')[0] for path in train} & {path.name.partition('.')[0] for path in val}
    record_fault('bad_data')
