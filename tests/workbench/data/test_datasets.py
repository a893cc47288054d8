"""Data sets are built once, and annotation files parsed once by us and once by each toolbox."""

import json
from collections import Counter

import pytest
from helpers.openmmlab.jobs import load_config
from helpers.openmmlab.own_data import make_own_data

from swin_backbone.options import Options
from swin_backbone.workbench.data.datasets import BuiltDatasets, iter_base_datasets
from swin_backbone.workbench.job import Job

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
MASK_RCNN = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
YOLOX = 'mmdet::yolox/yolox_tiny_8xb8-300e_coco.py'
VOC = 'mmdet::pascal_voc/retinanet_r50_fpn_1x_voc0712.py'


@pytest.fixture
def parsed(monkeypatch):
    """Count how often each annotation file is parsed, by its number of annotations."""
    counts, loads = Counter(), json.loads

    def counting(text, *args, **kwargs):
        data = loads(text, *args, **kwargs)
        if isinstance(data, dict) and 'annotations' in data:
            counts[len(data['annotations'])] += 1
        return data

    monkeypatch.setattr(json, 'loads', counting)
    return counts


@pytest.mark.parametrize('config', [RETINANET, MASK_RCNN])
def test_a_training_parses_its_annotations_five_times(tmp_path, parsed, config):
    own = make_own_data(tmp_path / 'own')
    options = {'train_dataloader.num_workers': 0, '+train_dataloader.persistent_workers': False}
    given = Options(backbone='swin-nano', data=own, work_dir=str(tmp_path), cfg_options=options)
    runner = Job(config, given).build_training()
    runner.build_train_loop(runner._train_loop)
    runner.build_val_loop(runner._val_loop)
    train, val = (len(json.loads((own / f'{split}.json').read_text())['annotations']) for split in ('train', 'val'))
    parsed.subtract({train: 1, val: 1})  # by this test
    assert parsed == {train: 2, val: 3}  # ours, mmdet's, and of the metric


@pytest.mark.parametrize(('config', 'wrapper'), [(YOLOX, 'MultiImageMixDataset'), (VOC, 'RepeatDataset')])
def test_a_data_set_in_a_wrapper_is_built_once(tmp_path, parsed, config, wrapper):
    cfg = load_config(config, str(tmp_path), data=make_own_data(tmp_path / 'own'))
    parsed.clear()
    datasets = BuiltDatasets(cfg)
    inner = datasets.build('train', cfg.train_dataloader.dataset.dataset)
    outer = datasets.build_phase('train')
    assert type(outer).__name__ == wrapper
    assert list(iter_base_datasets(outer)) == [inner]
    assert outer is datasets.build_phase('train')
    assert sum(parsed.values()) == 1
