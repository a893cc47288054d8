"""tools/print_config.py prints the config of a training on a user's data."""

import pytest
from helpers.in_process import run_well
from helpers.openmmlab.own_data import make_own_data
from mmengine.config import Config

pytest.importorskip('mmdet', reason='mmdet is not installed')


def test_data_epochs_and_batch_are_in_the_printed_config(tmp_path):
    options = ['--backbone', 'swin-nano', '--data', make_own_data(tmp_path / 'own'), '--epochs', 3, '--batch', 2]
    result = run_well('tools/print_config.py', 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', *options)
    cfg = Config.fromstring(result.stdout, '.py')
    assert (cfg.train_cfg.max_epochs, cfg.train_dataloader.batch_size) == (3, 2)
    assert cfg.model.bbox_head.num_classes == len(cfg.train_dataloader.dataset.metainfo.classes) == 2
    assert 'learning rate 0.0001, 2 pictures per step' in result.stderr
