"""Any config takes the data of a user: data sets, evaluators, numbers of classes and weights of losses."""

import json
from pathlib import Path

import pytest
from helpers import edited_json
from helpers.openmmlab.jobs import load_config
from helpers.openmmlab.own_data import DETECTION, SEGMENTATION, make_own_data, read_coco, write_coco
from mmdet.evaluation import CocoMetric
from mmengine.config import Config

from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.workbench.data.prepare.config import describe_lost_class_weights, put_data, set_num_classes
from swin_backbone.workbench.data.prepare.user_data import index_user_data


def test_detection_follows_the_data(own):
    cfg = load_config(DETECTION, None, {}, 'none', data=own)
    assert cfg.model.roi_head.bbox_head.num_classes == 2
    assert cfg.model.roi_head.mask_head.num_classes == 2
    assert cfg.train_dataloader.dataset.metainfo.classes == ('nut', 'bolt')
    assert cfg.train_dataloader.dataset.data_root == str(own)
    assert cfg.test_evaluator.ann_file == cfg.val_dataloader.dataset.ann_file
    index, coco = json.loads(Path(cfg.test_evaluator.ann_file).read_text()), read_coco(own, 'val')
    assert index['annotations'] == coco['annotations']
    assert [image['file_name'] for image in index['images']] == [
        f'images/val/{image["file_name"]}' for image in coco['images']
    ]
    assert 'own_data' not in cfg


@pytest.mark.parametrize('kind', ['CocoMetric', 'mmdet.CocoMetric', CocoMetric])
def test_a_metric_keeps_its_settings_however_its_class_is_named(own, kind):
    cfg = read_config(DETECTION)
    cfg.val_evaluator = dict(type='Evaluator', metrics=[dict(type=kind, ann_file='a.json', classwise=True)])
    put_data(cfg, index_user_data(own))
    assert (cfg.val_evaluator.type, cfg.val_evaluator.classwise) == ('CocoMetric', True)


@pytest.mark.parametrize('test', [True, False])
def test_a_test_set_of_the_user_is_that_of_the_config(tmp_path, test):
    """Roboflow's folders train, valid and test: the test is no second validation."""
    root = make_own_data(tmp_path / 'own')
    if test:
        (root / 'images' / 'val').rename(root / 'images' / 'test')
        (root / 'images' / 'val').mkdir()
        for number in range(2):
            (root / 'images' / 'val' / f'v{number}.png').write_bytes(
                (root / 'images' / 'test' / f'{number}.png').read_bytes()
            )
        with edited_json(root / 'val.json') as coco:
            write_coco(root, 'test', coco)
            for image in coco['images']:
                image['file_name'] = f'v{image["file_name"]}'
    data = index_user_data(root)
    assert list(data.splits) == ['train', 'val', 'test'][: 2 + test]
    cfg = read_config(DETECTION)
    put_data(cfg, data)
    assert cfg.test_dataloader.dataset.ann_file == data.splits['test' if test else 'val'].file
    assert cfg.test_evaluator.ann_file == cfg.test_dataloader.dataset.ann_file
    assert cfg.val_dataloader.dataset.ann_file == cfg.val_evaluator.ann_file == data.splits['val'].file
    assert any(line.startswith('  test ') for line in data.lines) == test


@pytest.mark.parametrize('config', [DETECTION, SEGMENTATION])
@pytest.mark.parametrize('phases', [('test',), ('val', 'test'), ('train',)])
def test_a_config_may_lack_a_loader(own, config, phases):
    cfg = read_config(config)
    data = index_user_data(own, None if config is DETECTION else own / 'labels', scope=cfg.default_scope)
    for phase in phases:
        for part in ('dataloader', 'evaluator', 'cfg'):
            cfg.pop(f'{phase}_{part}', None)
    put_data(cfg, data)
    for phase in {'train', 'val', 'test'}.difference(phases):
        assert cfg[f'{phase}_dataloader'].dataset.ann_file == data.splits[phase.replace('test', 'val')].file
    assert not [key for key in cfg if key.startswith(phases) and not key.endswith('pipeline')]


EQUAL = [1.0] * 80


@pytest.mark.parametrize(('weights', 'before', 'number', 'expected'), [
    ([0.4, 2.6, 5.9], 3, 3, [0.4, 2.6, 5.9]),  # of the user
    ([0.4, 2.6, 5.9], 150, 3, [0.4, 2.6, 5.9]),
    ([1.0, 1.0, 5.0], 3, 3, [1.0, 1.0, 5.0]),
    ([0.4, 2.6, 5.9, 0.1], 80, 3, [0.4, 2.6, 5.9, 0.1]),  # with a background
    ([*EQUAL, 0.1], 80, 3, [1.0, 1.0, 1.0, 0.1]),
    ([*EQUAL, 0.1], 80, 81, [*EQUAL, 1.0, 0.1]),
    (EQUAL, 80, 3, [1.0, 1.0, 1.0]),
    ([0.8, 0.9, 1.1, 1.2], 4, 3, None),  # of other classes
    ([0.8, 0.9, 1.1, 1.2], 4, 4, [0.8, 0.9, 1.1, 1.2]),
])  # fmt: skip
def test_weights_of_a_loss_stay_if_they_are_of_as_many_classes(weights, before, number, expected):
    model = dict(head=dict(num_classes=before, loss=dict(class_weight=weights)))
    original = Config(dict(model=model))
    cfg = Config(original.to_dict())
    for _ in range(2):  # the second time changes nothing
        set_num_classes(cfg.model, number)
        assert cfg.model.head.loss.class_weight == expected
    lines = list(describe_lost_class_weights(original, cfg))
    assert len(lines) == (expected is None)
    assert all(
        'model.head.loss.class_weight of the config: its 4 weights are of other classes' in line for line in lines
    )


def test_weights_by_option_stay_and_a_wrong_number_is_an_error(own):
    key, more = 'model.decode_head.loss_decode.class_weight', dict(data=own, annotations=own / 'labels')
    cfg = load_config(SEGMENTATION, None, {key: [0.4, 2.6]}, 'none', **more)
    assert cfg.model.decode_head.loss_decode.class_weight == [0.4, 2.6]
    with pytest.raises(ConfigError, match=f'{key} follows from --data, which makes it None, got'):
        load_config(SEGMENTATION, None, {key: [0.4, 2.6, 7.0]}, 'none', **more)
