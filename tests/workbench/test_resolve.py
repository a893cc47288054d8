"""The resolved config: a function of its arguments, which is its own result, and a plain config of its toolbox."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from helpers import PYTHONPATH, require_plain_mmdet, run_python
from helpers.in_process import run_well
from helpers.openmmlab.own_data import DETECTION, SEGMENTATION, SIDE
from helpers.openmmlab.own_folders import resolve
from mmengine.config import Config

from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.options import Options
from swin_backbone.workbench.data.annotations import uses_masks
from swin_backbone.workbench.data.balance import EpochPlan
from swin_backbone.workbench.data.prepare.user_data import index_user_data
from swin_backbone.workbench.resolve import apply_epoch_plan, combine, resolve_training

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
MASK2FORMER = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py'
FCN = 'mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py'
SETTINGS = Options(epochs=3, batch=2, shape=(64, 96), lr=1e-3, auto_scale_lr=True, patience=2, seed=1, workers=0)
CASES = {
    RETINANET: {'optim_wrapper.optimizer.weight_decay': 0.1},
    MASK2FORMER: {},
    str(DETECTION): {'model.backbone.drop_path_rate': 0.4},
    FCN: {'train_dataloader.dataset.pipeline.0.to_float32': False},
    str(SEGMENTATION): {'model.decode_head.loss_decode.class_weight': [0.5, 3.0]},
}


def data_for(config, own):
    scope = config.default_scope
    labels = own / 'labels' if scope == 'mmseg' else None
    return index_user_data(own, labels, scope=scope, with_masks=uses_masks(config))


@pytest.mark.parametrize('name', CASES)
def test_a_config_is_resolved_once_and_for_all(own, name):
    config = read_config(name)
    before, data = config.to_dict(), data_for(config, own)
    options = replace(SETTINGS, cfg_options=CASES[name])
    swapping = options if 'own' in name else replace(options, backbone='swin-nano')
    resolved = resolve(config, swapping, data)
    assert config.to_dict() == before
    assert resolve(config, swapping, data).to_dict() == resolved.to_dict()
    assert resolve(resolved).to_dict() == resolved.to_dict()
    assert resolve(resolved, options, data).to_dict() == resolved.to_dict()


@pytest.mark.parametrize('with_data', [True, False])
def test_settings_of_a_training_need_one(own, with_data):
    config = read_config(DETECTION)
    config.pop('train_dataloader')
    data, options = data_for(config, own) if with_data else None, Options(epochs=None if with_data else 2)
    with pytest.raises(ConfigError, match='the config has no data set in train_dataloader'):
        resolve_training(combine(config, options, data), options, data)


def test_no_file_is_read_and_none_written(own, tmp_path, monkeypatch):
    config = read_config(DETECTION)
    data, files, watched = data_for(config, own), [], []
    sys.addaudithook(lambda event, arguments: watched and event == 'open' and files.append(arguments[0]))
    monkeypatch.chdir(tmp_path)
    watched.append(True)
    resolve(config, SETTINGS, data)
    watched.clear()
    assert not [file for file in files if str(own) in str(file) or str(tmp_path) in str(file)]
    assert not list(tmp_path.iterdir())


def test_weights_and_balance_are_one_setting(own):
    config, key = read_config(SEGMENTATION), 'model.decode_head.loss_decode.class_weight'
    epoch, options = EpochPlan(4, class_weights=[0.7, 1.8]), Options(balance=True)
    resolved = resolve(config, options, data_for(config, own), epoch)
    assert resolved.model.decode_head.loss_decode.class_weight
    with pytest.raises(ConfigError, match=f'--balance and --cfg-options {key} are one setting'):
        resolve(config, replace(options, cfg_options={key: [1.0, 2.0]}), data_for(config, own), epoch)


@pytest.mark.parametrize(('pictures', 'moved', 'milestones'), [(32, ['param_scheduler.1.milestones'], [1]),
                                                             (3200, [], [3])])  # fmt: skip
def test_keys_of_a_schedule_whose_warm_up_is_gone_are_named(pictures, moved, milestones):
    key = 'param_scheduler.1.milestones'
    options = Options(epochs=4, cfg_options={key: [3]})
    cfg = combine(read_config(RETINANET), options)
    assert apply_epoch_plan(cfg, options, None, EpochPlan(pictures // 16)) == moved
    assert cfg.param_scheduler[-1].milestones == milestones


@pytest.mark.parametrize('selected', [0, 2])
def test_a_schedule_follows_the_pictures_that_are_selected(own, selected):
    """Also without --epochs: the log has a line for each epoch that is shorter than ten steps."""
    config, key = read_config(DETECTION), '+train_dataloader.dataset.indices'
    options, data = Options(batch=1, cfg_options={key: selected} if selected else {}), data_for(config, own)
    cfg = resolve_training(combine(config, options, data), options, data).cfg
    assert cfg.default_hooks.logger.interval == (selected or data.splits['train'].num_pictures)


def test_a_training_on_a_test_set_alone_is_tested_on_what_it_holds_out(own, tmp_path):
    (tmp_path / 'images').mkdir()
    (tmp_path / 'images' / 'test').symlink_to(own / 'images' / 'train')
    (tmp_path / 'test.json').symlink_to(own / 'train.json')
    config, options = read_config(DETECTION), Options()
    data = index_user_data(tmp_path, with_masks=True)
    combined = combine(config, options, data)
    combined.train_dataloader.dataset.metainfo.note = 'of the user'  # filling the config again would lose it
    trained = resolve_training(combined, options, data).cfg
    for cfg, split in ((combined, 'test'), (trained, 'val')):
        assert cfg.test_dataloader.dataset.ann_file == cfg.test_evaluator.ann_file == data.splits[split].file
        assert cfg.train_dataloader.dataset.metainfo.note == 'of the user'


@pytest.mark.parametrize(('options', 'is_own'), [
    (Options(lr=1e-4), True), (Options(cfg_options={'optim_wrapper.optimizer.lr': 1e-4}), True), (Options(), False),
])  # fmt: skip
def test_a_rate_of_the_user_gets_no_hint(options, is_own):
    config, options = read_config(RETINANET), replace(options, batch=2)
    lines = resolve_training(combine(config, options), options).changes
    assert any('--auto-scale-lr scales it' in line for line in lines) != is_own


def words(own, work, *more):
    small = [f'{loader}_dataloader.{option}' for loader in ('train', 'val', 'test')
             for option in ('num_workers=0', 'persistent_workers=False')]  # fmt: skip
    return ['--data', own, '--annotations', own / 'labels', '--work-dir', work, '--cfg-options',
            'model.backbone.depths=[1,1,1,1]', 'default_hooks.logger.interval=1', *small, *more]  # fmt: skip


def losses_of(work):
    (log,) = sorted(work.glob('*/vis_data/scalars.json'))[-1:]
    rows = map(json.loads, log.read_text().splitlines())
    return [row['loss'] for row in rows if 'loss' in row]


def test_the_saved_config_keeps_the_weights_of_balance(own, tmp_path, record_fault):
    """`--resume` with the config of the working folder is the same training."""
    work = tmp_path / 'work'
    run_well(
        'tools/train.py', SEGMENTATION, *words(own, work), '--epochs', 1, '--batch', 2, '--balance', '--shape', SIDE
    )
    saved = Config.fromfile(work / SEGMENTATION.name)
    weights = saved.model.decode_head.loss_decode.class_weight
    assert len(weights) == 2
    assert 'own_data' not in saved
    run_well('tools/train.py', work / SEGMENTATION.name, '--resume', '--epochs', 2, '--work-dir', work)
    again = Config.fromfile(work / SEGMENTATION.name)
    assert again.model.decode_head.loss_decode.class_weight == weights
    assert again.model.auxiliary_head.loss_decode.class_weight == weights
    assert again.train_cfg.max_iters == 4
    record_fault('resumes')


ALL = 100000  # samples of a loss
SAME = {
    'mmdet': (DETECTION, ['train_cfg.max_epochs=2', 'train_dataloader.batch_size=2',
                          'train_dataloader.dataset.pipeline.3.prob=0.0', f'model.train_cfg.rpn.sampler.num={ALL}',
                          f'model.train_cfg.rcnn.sampler.num={ALL}']),
    'mmseg': (SEGMENTATION, ['train_cfg.max_iters=4', 'train_cfg.val_interval=4', 'train_dataloader.batch_size=2',
                             'train_dataloader.dataset.pipeline.2.scale=(96,96)',
                             'model.data_preprocessor.size=(96,96)',
                             'train_dataloader.dataset.pipeline.2.ratio_range=(1.0,1.0)',
                             f'train_dataloader.dataset.pipeline.3.crop_size=({SIDE},{SIDE})',
                             'train_dataloader.dataset.pipeline.4.prob=0.0', '+model.decode_head.dropout_ratio=0.0',
                             '+model.auxiliary_head.dropout_ratio=0.0']),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg'])
def test_the_toolboxs_own_tool_trains_the_saved_config_to_the_same_losses(toolbox, own, tmp_path):
    """Without randomness in the data: this package draws random numbers by iteration, and mmengine by process."""
    require_plain_mmdet()
    ours, theirs = tmp_path / 'ours', tmp_path / 'theirs'
    config, more = SAME[toolbox]
    given = words(own, ours, *more)
    if toolbox == 'mmdet':
        given[2:4] = []  # no labels
    seeds = ['randomness.seed=3', 'train_dataloader.sampler.shuffle=False']
    run_well('tools/train.py', config, *given, *seeds)
    tool = Path(find_spec(toolbox).origin).parent / '.mim' / 'tools' / 'train.py'
    run_python(tool, ours / config.name, '--work-dir', theirs, folder=tmp_path, path=PYTHONPATH)
    assert len(losses_of(ours)) == 4
    np.testing.assert_allclose(losses_of(theirs), losses_of(ours), rtol=1e-3)
