"""`--data` with layouts and exports of annotation programs: the right objects and labels, or an error with advice."""

import json
import re
import shutil

import numpy as np
import pytest
from helpers.openmmlab import exports, layouts
from helpers.openmmlab.own_folders import BOXES, LABELS, MASKS, boxes, fill, labels_of, read
from pycocotools import mask as coco_mask

from swin_backbone.checks import DataError
from swin_backbone.workbench.data.annotations import scan_annotation_file
from swin_backbone.workbench.data.check_data import check_data
from swin_backbone.workbench.data.datasets import BuiltDatasets

ALL = {name for _, name, *_ in layouts.scenes()}


def plain(name):
    """Return the name of a scene, without the additions of a program."""
    return re.sub(r'^8ab1-|_jpg\.rf\.[0-9a-f]+|\.jpg$', '', name)


@pytest.mark.parametrize(('kind', 'keeps_split'), [
    ('cvat_coco', False), ('cvat_coco_subsets', True), ('cvat_voc', False), ('cvat_voc_subsets', True),
    ('cvat_yolo', False), ('cvat_ultralytics', True), ('label_studio_coco', False),
    ('label_studio_coco_windows', False), ('label_studio_coco_upload', False), ('label_studio_coco_local_files', False),
    ('label_studio_yolo', False), ('label_studio_voc', False), ('labelme_coco', False),
    *((f'cvat_images{kind}', False) for kind in ('', '_polygon', '_halves', '_mask', '_turned', '_ellipse')),
    *((f'labelme{kind}', False) for kind in ('', '_polygon', '_circle', '_mask', '_windows', '_elsewhere')),
    ('cvat_images_subsets', True), ('roboflow_coco', True),
    ('roboflow_coco_one_name', True), ('roboflow_yolo', True), ('roboflow_darknet', True), ('roboflow_voc', True),
    ('label_studio_coco_own_pictures', False), ('label_studio_coco_no_sizes', False), ('via_coco', False),
    ('voc_segmentation', True), ('coco', True), ('yolo', True), ('voc', True),
])  # fmt: skip
def test_objects_of_exports(kind, keeps_split, tmp_path, record_fault):
    cfg, report = fill(BOXES, exports.made(kind, tmp_path), tmp_path / 'work')
    assert cfg.model.bbox_head.num_classes == len(cfg.train_dataloader.dataset.metainfo.classes)
    assert cfg.val_evaluator.ann_file == cfg.val_dataloader.dataset.ann_file
    seen = {}
    for phase in ('train', 'val'):
        check = scan_annotation_file(cfg[f'{phase}_dataloader'].dataset.ann_file, 'COCO', kind == 'via_coco')
        assert not any(map(len, (check.errors, check.masks, check.in_evaluation, check.warnings)))
        data = read(cfg, phase)
        assert f'{len(data["images"])} pictures' in report
        objects = {plain(name): results for name, results in boxes(data).items()}
        assert not seen.keys() & objects.keys()
        seen.update(objects)
        if keeps_split:
            assert objects.keys() == {name for name, *_ in layouts.scenes_of(phase)}
    assert seen.keys() == ALL
    for _, name, _, there in layouts.scenes():
        truth = sorted((layouts.NAMES[kind], x, y, side, side) for x, y, side, kind in there)
        for one, other in zip(seen[name], truth):
            assert one[0] == other[0]
            assert one[1:] == pytest.approx(other[1:], abs=0.02)
    record_fault('bad_data')


@pytest.mark.parametrize(('kind', 'train'), [
    ('cvat_masks', None), ('cvat_masks_subsets', {'train_0', 'train_1', 'train_2', 'train_3'}), ('labelme_voc', None),
    ('roboflow_masks', {'train_0', 'train_1', 'train_2', 'train_3'}),
    ('voc_segmentation', {'train_2', 'val_0', 'val_1'}),
])  # fmt: skip
def test_labels_of_exports(kind, train, tmp_path, record_fault):
    cfg, report = fill(LABELS, exports.made(kind, tmp_path), tmp_path / 'work')
    halves = [{plain(name): labels for name, labels in labels_of(cfg, phase).items()} for phase in ('train', 'val')]
    named = ALL - ({'train_3'} if kind == 'voc_segmentation' else set())
    assert halves[0].keys() | halves[1].keys() == named
    assert not halves[0].keys() & halves[1].keys()
    assert train is None or halves[0].keys() == train
    for _, name, _, there in layouts.scenes():
        labels = {**halves[0], **halves[1]}.get(name)
        if labels is None:
            continue
        for x, y, side, kind_ in there:
            assert (labels[y + side // 2 : y + side, x + side - 1] == kind_ + 1).all()
        assert set(np.unique(labels)) == {0, 1, 2} | ({255} if kind == 'voc_segmentation' else set())
    if kind != 'voc_segmentation':
        assert cfg.train_dataloader.dataset.metainfo.classes[1:] == ('nut', 'bolt')
        assert 'without' not in report
    else:
        assert '1 pictures that no list names, as JPEGImages/train_3.jpg' in report
    record_fault('bad_data')


@pytest.mark.parametrize(('kind', 'config', 'message'), [
    *((kind, BOXES, "json is not in COCO's format: it has no list 'images'. Export COCO or YOLO")
      for kind in ('via_json', 'label_studio_json')),
    *((kind, config, 'no annotations .* were found .* datumaro and supervision convert')
      for kind, config in (('via_csv', BOXES), ('via_csv', LABELS), ('cvat_images', LABELS), ('labelme', LABELS))),
    ('cvat_coco', LABELS, 'looked for a PNG of labels for each picture'),
])  # fmt: skip
def test_exports_without_a_reader_are_refused_with_advice(kind, config, message, tmp_path, record_fault):
    with pytest.raises(ValueError, match=message):
        fill(config, exports.made(kind, tmp_path), tmp_path / 'work')
    record_fault('bad_data')


def changed(path, old='', new='', **keys):
    """Return a function that changes a text, or keys of the first shape, in a file."""

    def change(root):
        file = root / path
        data = file.read_text()
        if keys:
            data = json.loads(data)
            data['shapes'][0].update(keys)
            data = json.dumps(data)
        assert data.count(old)
        file.write_text(data.replace(old, new, 1) if old else data)

    return change


def one_more(root):
    shutil.copy(root / 'images' / 'train_0.json', root / 'images' / 'copy.json')


def of_one_picture(root):
    """Two JSON files of train_1; a picture's name is not that of its file."""
    changed('images/train_0.json', 'train_0.jpg', 'train_1.jpg')(root)


def without_picture(root):
    (root / 'images' / 'train_0.jpg').unlink()


def without_pictures(root):
    [path.unlink() for path in root.rglob('*.jpg')]


JSON, XML = r'train_0\.json: ', r"annotations\.xml: image 0 \('train_0\.jpg'\)"
BOX = '<box label="nut" xtl="4"'


@pytest.mark.parametrize(('kind', 'change', 'message'), [
    ('labelme', changed('images/train_0.json', label=None), JSON + r'shapes\[0\]\.label takes the name .* got None'),
    ('labelme', changed('images/train_0.json', points=[[1, 2]]),
     JSON + r'shapes\[0\]\.points: a rectangle takes two corners, .* got \[\[1, 2\]\]'),
    ('labelme', changed('images/train_0.json', shape_type='polygon', points=[[1, 2], [3, 4]]),
     JSON + r'shapes\[0\]\.points: a polygon takes three points or more'),
    ('labelme', changed('images/train_0.json', shape_type='polygon', points=[[1, 2], [3, float('nan')], [3, 'x']]),
     JSON + r'shapes\[0\]\.points: a polygon takes three points or more'),
    ('labelme_mask', changed('images/train_0.json', mask='bm90IGEgUE5H'), JSON + r'shapes\[0\]\.points: a mask takes'),
    ('labelme_mask', changed('images/train_0.json', points=[[60, 6], [83, 29]]), JSON + r'shapes\[0\]\.points: a mask'),
    ('labelme', changed('images/train_0.json', '"shapes": [{', '"shapes": [3, {'), JSON + r'shapes\[0\] takes an'),
    ('labelme', changed('images/train_0.json', '"imageData"', 'imageData'), 'train_0.json cannot be read as JSON'),
    ('labelme', of_one_picture, r'train_0\.json and .*train_1\.json are of the same picture images/train_1\.jpg'),
    ('labelme', one_more, r'copy\.json and .*train_0\.json are of the same picture'),
    ('labelme', without_picture, JSON + r"imagePath is 'train_0\.jpg', and below .* is no picture .*_json"),
    ('labelme', without_pictures, 'imageData has the picture: `labelme_export_json` writes a file of it'),
    ('cvat_images', changed('annotations.xml', BOX, '<box xtl="4"'), XML + ': box 1 has no label'),
    ('cvat_images', changed('annotations.xml', BOX, '<box label="nut" xtl="a"'),
     XML + r": box 1 takes xtl, ytl, xbr, ybr; got {'xtl': 'a', 'ytl'"),
    ('cvat_images_mask', changed('annotations.xml', 'rle="27', 'rle="26'), XML + ': mask 1 takes rle with width'),
    ('cvat_images_mask', changed('annotations.xml', 'left="3"', 'left="59"'), XML + ': mask 1 takes rle with width'),
    ('cvat_images_polygon', changed('annotations.xml', '4.00,6.00;28.00,6.00;28.00,30.00;', '4.00,6.00;'),
     XML + ': polygon 1 takes points='),
    ('cvat_images', changed('annotations.xml', BOX, '<box label="cog" xtl="4"'),
     XML + r" has the class 'cog', which is none of \['nut', 'bolt'\]"),
    ('cvat_images', changed('annotations.xml', 'name="train_1.jpg"', 'name="train_0.jpg"'),
     r"image 0 \('train_0.jpg'\) and .*: image 1 \('train_0.jpg'\) are of the same picture"),
    ('cvat_images', lambda root: (root / 'images/default/train_0.jpg').unlink(), XML + ': below .* is no picture of'),
    ('cvat_images', changed('annotations.xml', '</meta>', '</meta><track id="0" label="nut"></track>'),
     r'annotations\.xml has tracks of CVAT for video: export CVAT for images 1\.1, or COCO'),
    ('cvat_images', changed('annotations.xml', '</annotations>'), r'annotations\.xml cannot be read as XML'),
])  # fmt: skip
def test_errors_in_labelme_and_cvat_are_named(kind, change, message, tmp_path, record_fault):
    root = exports.made(kind, tmp_path)
    change(root)
    with pytest.raises(DataError, match=message):
        fill(BOXES, root, tmp_path / 'work')
    record_fault('bad_data')


@pytest.mark.parametrize(('kind', 'lines'), [
    ('labelme', ["shapes of the type 'line': 6, as "]),
    ('cvat_images', ['elements <tag>: 6, as ', 'elements <polyline>: 6, as ']),
])  # fmt: skip
def test_shapes_without_an_area_are_counted(kind, lines, tmp_path, record_fault):
    root = exports.made(kind, tmp_path)
    for path in root.rglob('train_1.json'):
        path.unlink()
    if kind == 'labelme':  # keys in the order of the alphabet
        for path in root.rglob('*.json'):
            path.write_text(json.dumps(json.loads(path.read_text()) | dict(imageData='A' * 10**5), sort_keys=True))
        lines = [lines[0].replace('6', '5'), '1 pictures without a JSON file, as images/train_1.jpg']
    _, report = fill(BOXES, root, tmp_path / 'work')
    assert [line in report for line in lines] == [True] * len(lines)
    record_fault('bad_data')


@pytest.mark.parametrize('kind', ['labelme_polygon', 'labelme_mask', 'cvat_images_polygon', 'cvat_images_mask'])
def test_outlines_and_bitmaps_are_masks(kind, tmp_path):
    cfg, _ = fill(MASKS, exports.made(kind, tmp_path), tmp_path / 'work')
    data = read(cfg)
    for item in data['annotations']:
        mask = item['segmentation']
        area = coco_mask.area(coco_mask.merge(coco_mask.frPyObjects(mask, 64, 64)) if isinstance(mask, list) else mask)
        assert item['area'] == area == item['bbox'][2] * item['bbox'][3]
    report, _ = check_data(BuiltDatasets(cfg, ()))
    assert report.rows['objects trained on'] == str(len(data['annotations']))


def test_tasks_of_cvat_may_have_the_same_names(tmp_path):
    for task in ('task_1', 'task_2'):
        exports.made('cvat_images', tmp_path / 'own' / task)
    cfg, _ = fill(BOXES, tmp_path / 'own', tmp_path / 'work')
    assert len(read(cfg)['images']) + len(read(cfg, 'val')['images']) == 12


def test_an_xml_of_cvat_may_be_elsewhere(tmp_path):
    root = exports.made('cvat_images', tmp_path)
    xml = shutil.move(root / 'annotations.xml', tmp_path / 'job_7.xml')
    cfg, report = fill(BOXES, root, tmp_path / 'work', xml)
    assert 'CVAT for images' in report
    assert len(boxes(read(cfg))) == 5
