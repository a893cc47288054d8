"""What is said of data before a training: classes, unusual objects, and what no loss sees, with the reason."""

import random
import re
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from helpers.openmmlab.bad_annotations import SIDE, SQUARE, make_data, train

from swin_backbone.checks import DataError
from swin_backbone.workbench.data import guard
from swin_backbone.workbench.data.check_data import check_data
from swin_backbone.workbench.data.datasets import BuiltDatasets

CROWD = 'objects with iscrowd=1 (difficult in Pascal VOC), which losses and scores leave out'
RLE = 'objects whose mask is an RLE, which LoadAnnotations(poly2mask=False) leaves out of losses'


def polygons_alone(dataset):
    dataset.pipeline[1].poly2mask = False


def one_class(dataset):
    dataset.metainfo.classes = ('bolt',)


def filtered(dataset):
    """The first object becomes 6 x 12 pixels."""
    steps = [
        dict(type='Resize', scale=(24, 24)),
        dict(type='FilterAnnotations', min_gt_bbox_wh=(8, 8), keep_empty=False),
    ]
    dataset.pipeline[2:2] = steps


def setting(**settings):
    return lambda dataset: dataset.update(settings)


# Change of the first object, of its picture, and of the data set; its line, and the number of objects.
LEFT_OUT = {
    'crowd': (dict(iscrowd=1), {}, None, f'{CROWD}: 1, as 1 of 0.png', 1),
    'ignore': (dict(ignore=1), {}, None, "objects with 'ignore', which are left out: 1, as annotation 10", 1),
    'no polygon': ({}, {}, polygons_alone, f'{RLE}: 1, as number 0 of 1.png', 1),
    'a class': (dict(category_id=7), {}, one_class, 'objects that CocoDataset does not load: 1, as 1 of 1.png', 1),
    'no objects': (
        dict(image_id=1), {}, setting(filter_cfg=dict(filter_empty_gt=True)),
        "pictures that filter_cfg={'filter_empty_gt': True} leaves out: 1, as 0.png, 48x48 with 0 objects", 2,
    ),
    'small': (
        {}, dict(width=20), setting(filter_cfg=dict(min_size=32)),
        "pictures that filter_cfg={'min_size': 32} leaves out: 1, as 0.png, 20x48 with 1 objects", 1,
    ),
    'no area': (dict(bbox=[4, 6, 0.5, 24]), {}, None,
                'objects without area, which are left out: 1, as annotation 10 has bbox [4, 6, 0.5, 24]', 1),
    'outside': (
        dict(bbox=[60, 6, 24, 24]), {}, None,
        'boxes outside their image, which are left out: 1, as annotation 10 has bbox [60, 6, 24, 24], its image 0 is '
        '48x48', 1,
    ),
    'pipeline': (
        dict(bbox=[4, 6, 12, 24]), {}, filtered,
        'objects that FilterAnnotations(min_gt_bbox_wh=(8, 8), min_gt_mask_area=1, by_mask=False) leaves out, in a '
        'random pass of the pipeline: 1, as 1 of 0.png', 1,
    ),
    'indices': ({}, {}, setting(indices=1), 'pictures that indices=1 leaves out: 1, as 1.png, 48x48 with 1 objects', 1),
}  # fmt: skip


@pytest.mark.parametrize('case', LEFT_OUT)
def test_what_is_left_out_is_counted_before_training(record_fault, tmp_path, caplog, case):
    item, image, change_data, line, left = LEFT_OUT[case]
    cfg = make_data(tmp_path, lambda coco: (coco['annotations'][0].update(item), coco['images'][0].update(image)))
    if change_data:
        change_data(cfg.train_dataloader.dataset)
    check = check_data(BuiltDatasets(cfg, ()))[0]
    assert any(sentence.endswith(line) for sentence in check.warnings.sentences())
    assert check.rows['objects trained on'] == str(left)
    samples = train(cfg)
    assert sum(len(sample['data_samples'][0].gt_instances) for sample in samples) == left
    assert f'coco.json has {line}' in caplog.text
    record_fault('annotations')


def test_a_training_without_objects_is_an_error(record_fault, tmp_path):
    cfg = make_data(tmp_path, lambda coco: [item.update(iscrowd=1) for item in coco['annotations']])
    message = r'no object of .*coco\.json is left to train on: it has .*iscrowd=1 .*: 2, as'
    (sentence,) = check_data(BuiltDatasets(cfg, ()))[0].errors.sentences()
    assert re.search(message, sentence)
    with pytest.raises(DataError, match=message):
        train(cfg)
    record_fault('annotations', 2)


def test_pictures_of_16_bits_are_named(record_fault, tmp_path, monkeypatch):
    cfg = make_data(tmp_path, lambda coco: None)
    for name in ('0.png', '1.png'):
        cv2.imwrite(str(tmp_path / 'images' / name), np.full((SIDE, SIDE, 3), 4095, np.uint16))
    line = check_data(BuiltDatasets(cfg, ()))[0].warnings.sentences()[-1]
    note = ' has 16 bits a channel, of which the upper 8 are used: its largest value 4095 becomes 15 of 255'
    assert line.startswith('pictures of more bits or bands than are loaded: 2, as ')
    assert line.endswith(note)
    (logged,) = notes_of_guard(cfg, monkeypatch)
    assert logged.endswith(f'{note} (the first such picture)')
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.pipeline[0].color_type = 'unchanged'
    assert '16 bits' not in str(check_data(BuiltDatasets(cfg, ()))[0].warnings.sentences())
    record_fault('annotations', 2)


def notes_of_guard(cfg, monkeypatch):
    """Return what the guard logs in a training."""
    logged = []
    logger = SimpleNamespace(get_current_instance=lambda: SimpleNamespace(warning=logged.append))
    monkeypatch.setattr(guard, 'MMLogger', logger)
    train(cfg)
    return logged


def test_pictures_of_another_size_than_annotated_are_named_while_loading(record_fault, tmp_path, monkeypatch):
    def widen(coco):
        coco['annotations'].pop()  # an RLE, which has the size too
        for image in coco['images']:
            image['width'] = 2 * SIDE

    cfg = make_data(tmp_path, widen)
    (note,) = notes_of_guard(cfg, monkeypatch)
    assert note.endswith(f'.png is {SIDE}x{SIDE}, annotated as {2 * SIDE}x{SIDE} (the first such picture)')
    record_fault('annotations')


TWINS = {
    'twice': (lambda coco: coco['annotations'].append({**coco['annotations'][0], 'id': 99}),
              'objects with class and box of another: 1, as annotation 99 and 10'),
    'two classes': (lambda coco: coco['annotations'].append({**coco['annotations'][0], 'id': 99, 'category_id': 7}),
                    'objects with the box of another class: 1, as annotation 99 and 10'),
    'corners': (lambda coco: coco['annotations'][0].update(segmentation=[[x + 20 for x in SQUARE]]),
                'objects whose bbox is not around their polygons: 1, as annotation 10 has bbox [4, 6, 24, 24]'),
    'one name': (lambda coco: coco['images'][1].update(file_name='0.png'),
                 'file names of several images, each with objects of its own: 1, as 0.png of 2'),
    'no score': (lambda coco: None, 'classes without validation data, which have no score: 1, as bolt'),
}  # fmt: skip


def test_counting_in_a_random_pass_changes_no_draws(tmp_path):
    cfg = make_data(tmp_path, lambda coco: None)
    filtered(cfg.train_dataloader.dataset)
    cfg.train_dataloader.dataset.pipeline.insert(2, dict(type='RandomFlip', prob=0.5))
    random.seed(1)
    np.random.seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist()
    check_data(BuiltDatasets(cfg, ()))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


@pytest.mark.parametrize('case', TWINS)
def test_unusual_objects_are_a_line_each(record_fault, tmp_path, case):
    change, line = TWINS[case]
    check = check_data(BuiltDatasets(make_data(tmp_path, change), ()))[1]
    assert not check.errors
    assert sum(sentence.endswith(line) for sentence in check.warnings.sentences()) == 1
    record_fault('annotations')
