"""`--data` with layouts and exports of annotation programs: the right objects and labels, or an error with advice."""

import re

import numpy as np
import pytest
from helpers.openmmlab import exports, layouts
from helpers.openmmlab.own_folders import BOXES, LABELS, boxes, fill, labels_of, read

from swin_backbone.workbench.data.annotations import check_annotations

ALL = {name for split in ('train', 'val') for name, *_ in layouts.scenes(split)}


def plain(name):
    """Return the name of a scene, without the additions of a program."""
    return re.sub(r'^8ab1-|_jpg\.rf\.[0-9a-f]+|\.jpg$', '', name)


@pytest.mark.parametrize(('kind', 'keeps_split'), [
    ('cvat_coco', False), ('cvat_coco_subsets', True), ('cvat_voc', False), ('cvat_voc_subsets', True),
    ('cvat_yolo', False), ('cvat_ultralytics', True), ('label_studio_coco', False),
    ('label_studio_coco_windows', False), ('label_studio_coco_upload', False), ('label_studio_coco_local_files', False),
    ('label_studio_yolo', False), ('label_studio_voc', False), ('labelme_coco', False), ('roboflow_coco', True),
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
        check = check_annotations(cfg[f'{phase}_dataloader'].dataset.ann_file, 'COCO', kind == 'via_coco')
        assert not any(map(len, (check.errors, check.masks, check.in_evaluation, check.warnings)))
        data = read(cfg, phase)
        assert f'{len(data["images"])} pictures' in report
        objects = {plain(name): results for name, results in boxes(data).items()}
        assert not seen.keys() & objects.keys()
        seen.update(objects)
        if keeps_split:
            assert objects.keys() == {name for name, *_ in layouts.scenes(phase)}
    assert seen.keys() == ALL
    for name, _, there in (scene for split in ('train', 'val') for scene in layouts.scenes(split)):
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
    for name, _, there in (scene for split in ('train', 'val') for scene in layouts.scenes(split)):
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
      for kind in ('labelme', 'via_json', 'label_studio_json')),
    *((kind, config, 'no annotations .* were found .* datumaro and supervision convert')
      for kind in ('cvat_images', 'via_csv') for config in (BOXES, LABELS)),
    ('cvat_coco', LABELS, 'looked for a PNG of labels for each picture'),
])  # fmt: skip
def test_exports_without_a_reader_are_refused_with_advice(kind, config, message, tmp_path, record_fault):
    with pytest.raises(ValueError, match=message):
        fill(config, exports.made(kind, tmp_path), tmp_path / 'work')
    record_fault('bad_data')
