"""Configs for the user's own pictures: filled from `own_data`, or an error that names the key."""

import json

import pytest
from helpers import ROOT
from helpers.openmmlab.jobs import load_config

from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.workbench.job import Job, Options

CONFIGS = ROOT / 'configs'
DETECTION = str(CONFIGS / 'mask_rcnn' / 'mask-rcnn_swin-t-p4-w7_fpn_1x_own.py')
SEGMENTATION = str(CONFIGS / 'upernet' / 'swin-tiny-patch4-window7-in1k-pre_upernet_own-512x512.py')


@pytest.fixture
def folder(tmp_path):
    for name in ('images/train', 'images/val', 'labels/train', 'labels/val', 'annotations'):
        (tmp_path / name).mkdir(parents=True)
    write_categories(tmp_path, 'train', ['nut', 'bolt'])
    write_categories(tmp_path, 'val', ['nut', 'bolt'])
    return tmp_path


def write_categories(folder, split, names):
    categories = [dict(id=10 * i + 10, name=name) for i, name in enumerate(names)]
    text = json.dumps(dict(images=[], annotations=[], categories=categories))
    (folder / 'annotations' / f'instances_{split}.json').write_text(text)


def test_detection_follows_the_annotation_file(folder):
    cfg = load_config(DETECTION, None, {'own_data.root': str(folder)}, 'none')
    assert cfg.model.roi_head.bbox_head.num_classes == 2
    assert cfg.model.roi_head.mask_head.num_classes == 2
    assert cfg.train_dataloader.dataset.metainfo.classes == ('nut', 'bolt')
    assert cfg.train_dataloader.dataset.data_root == str(folder)
    assert cfg.test_dataloader.dataset.data_prefix.img == 'images/val'
    assert cfg.test_evaluator.ann_file == str(folder / 'annotations' / 'instances_val.json')


def test_segmentation_follows_the_command_line(folder):
    options = {'own_data.root': str(folder), 'own_data.classes': ['road', 'tree', 'sky'], 'own_data.ignore_index': 11}
    cfg = load_config(SEGMENTATION, None, options, 'none')
    assert cfg.model.decode_head.num_classes == cfg.model.auxiliary_head.num_classes == 3
    assert cfg.model.decode_head.ignore_index == cfg.model.data_preprocessor.seg_pad_val == 11
    assert cfg.val_evaluator.ignore_index == 11
    assert cfg.val_dataloader.dataset.data_prefix.seg_map_path == 'labels/val'


@pytest.mark.parametrize(
    ('config', 'options', 'message'),
    [
        (DETECTION, {'own_data.val.images': 'nowhere'}, r"own_data.val.images is 'nowhere', and there is no"),
        (
            DETECTION,
            {f'own_data.{s}.annotations': 'images' for s in ('train', 'val')},
            'images is a folder, and no file',
        ),
        (SEGMENTATION, {}, 'own_data.classes must name the classes'),
        (SEGMENTATION, {'own_data.classes': 'road'}, "own_data.classes.*got 'road'"),
    ],
)
def test_what_is_missing_is_named(folder, config, options, message):
    with pytest.raises(ValueError, match=message):
        load_config(config, None, {'own_data.root': str(folder), **options}, 'none')


def test_a_report_names_an_option_that_contradicts_the_data(folder, tmp_path):
    job = Job(DETECTION, Options(cfg_options={'own_data.root': str(folder), 'model.roi_head.bbox_head.num_classes': 7}))
    with pytest.raises(ConfigError, match='num_classes follows from own_data, which makes it 2, got 7'):
        job.report('x.pth', tmp_path / 'report')


@pytest.mark.parametrize(('names', 'message'), [
    (['bolt', 'nut'], "number 1 is 'nut' in the first, and 'bolt' in the second"),
    (['nut', 'bolt', 'pin'], "number 3 is None in the first, and 'pin' in the second"),
])  # fmt: skip
def test_training_and_validation_must_have_the_same_categories(folder, names, message):
    write_categories(folder, 'val', names)
    files = f'{folder}/annotations/instances_train.json and {folder}/annotations/instances_val.json'
    with pytest.raises(ValueError, match=f'{files} must have the same categories in the same order: {message}'):
        load_config(DETECTION, None, {'own_data.root': str(folder)}, 'none')
