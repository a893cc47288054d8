"""What is wrong with a config is said before anything is built of it, by its key."""

import pytest

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')

import copy
import inspect
import re
from functools import cache
from importlib import import_module
from typing import get_args

import torch
from helpers import ROOT
from helpers.openmmlab.own_data import detection, make_own_data
from mmengine.registry import DATA_SAMPLERS, MODELS, PARAM_SCHEDULERS, TASK_UTILS

from swin_backbone.openmmlab.config.cfg_options import apply_options, parse_options
from swin_backbone.openmmlab.config.check import RANGES, RANGES_WITHIN, _hints, check_config, check_fit
from swin_backbone.openmmlab.config.files import read_config
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.openmmlab.runtime import load_config

DETECTOR = 'swin_backbone::demo/mask-rcnn_swin-nano_fpn_shapes.py'
SEGMENTOR = 'swin_backbone::demo/swin-nano_upernet_shapes.py'

WRONG = {
    # numbers
    'train_cfg.max_epochs=-1': 'train_cfg.max_epochs takes a number of at least 1, got -1',
    'train_cfg.max_epochs=many': "train_cfg.max_epochs takes a number, got 'many'",
    'train_cfg.val_interval=0': 'train_cfg.val_interval takes a number of at least 1, got 0',
    'train_dataloader.batch_size=0': 'train_dataloader.batch_size takes a number from 1 to 1000000, got 0',
    'train_dataloader.batch_size=99999999999999999999': 'batch_size takes a number from 1 to 1000000, got 99999999999',
    'train_dataloader.num_workers=1000000': 'train_dataloader.num_workers takes a number from 0 to 512, got 1000000',
    'randomness.seed=4294967296': 'randomness.seed takes a number from 0 to 4294967295, got 4294967296',
    'log_processor.window_size=0': 'log_processor.window_size takes a number of at least 1, got 0',
    'train_dataloader.batch_size=many': "train_dataloader.batch_size takes a number, got 'many'",
    'train_dataloader.num_workers=-1': 'train_dataloader.num_workers takes a number from 0 to 512, got -1',
    'optim_wrapper.optimizer.lr=nan': 'optim_wrapper.optimizer.lr takes a number, got nan',
    'optim_wrapper.optimizer.lr=-1': 'optim_wrapper.optimizer.lr takes a number of at least 0, got -1',
    'optim_wrapper.optimizer.lr=abc': "optim_wrapper.optimizer.lr takes a number, got 'abc'",
    'optim_wrapper.optimizer.betas=(0.9,nan)': 'optim_wrapper.optimizer.betas.1 takes a number, got nan',
    'optim_wrapper.optimizer.type=SGDD': "optim_wrapper.optimizer.type takes the name of an optimizer, got 'SGDD'",
    'model.data_preprocessor.pad_size_divisor=0': 'pad_size_divisor takes a number of at least 1, got 0',
    'model.roi_head.bbox_head.num_classes=0': 'bbox_head.num_classes takes a number of at least 1, got 0',
    'model.neck.num_outs=0': 'model.neck.num_outs takes a number of at least 1, got 0',
    'default_hooks.logger.interval=0': 'default_hooks.logger.interval takes a number of at least 1, or -1 for never',
    'default_hooks.checkpoint.interval=0': 'default_hooks.checkpoint.interval takes a number of at least 1, or -1',
    'randomness.seed=abc': "randomness.seed takes a number, got 'abc'",
    'default_hooks.checkpoint.interval=-5': 'default_hooks.checkpoint.interval takes a number of at least 1, or -1',
    'default_hooks.checkpoint.max_keep_ckpts=0': 'max_keep_ckpts takes a number of at least 1, or -1 for all, got 0',
    'model.train_cfg.rcnn.sampler.num=0': 'model.train_cfg.rcnn.sampler.num takes a number of at least 1, got 0',
    'model.train_cfg.rpn.sampler.pos_fraction=1.5': 'rpn.sampler.pos_fraction takes a number from 0 to 1, got 1.5',
    'model.train_cfg.rpn.sampler.neg_pos_ub=-2': 'rpn.sampler.neg_pos_ub takes a number of at least -1, got -2',
    'model.train_cfg.rpn.assigner.pos_iou_thr=7': 'assigner.pos_iou_thr takes a number from 0 to 1, got 7',
    'param_scheduler.0.begin=-5': 'param_scheduler.0.begin takes a number of at least 0, got -5',
    'param_scheduler.0.end=0': 'param_scheduler.0.end takes a number of at least 1, got 0',
    'param_scheduler.0.start_factor=-0.1': 'param_scheduler.0.start_factor takes a number from 0 to 1, got -0.1',
    '+param_scheduler.0.gamma=-1': 'param_scheduler.0.gamma takes a number of at least 0, got -1',
    '+param_scheduler.0.milestones=[3,0]': 'param_scheduler.0.milestones.1 takes a number of at least 1, got 0',
    'model.data_preprocessor.std=[58.4,0,57.4]': 'model.data_preprocessor.std.1 takes a number above 0, got 0',
    'model.data_preprocessor.std=[58.4,-1,57.4]': 'model.data_preprocessor.std.1 takes a number above 0, got -1',
    'model.data_preprocessor.mean=[a,b,c]': "model.data_preprocessor.mean.0 takes a number, got 'a'",
    'optim_wrapper.clip_grad.max_norm=0': 'optim_wrapper.clip_grad.max_norm takes a number above 0, got 0',
    'model.rpn_head.loss_cls.loss_weight=-1': 'loss_cls.loss_weight takes a number of at least 0, got -1',
    'train_dataloader.dataset.pipeline.3.prob=2': 'pipeline.3.prob takes a number from 0 to 1, got 2',
    # kinds
    'custom_hooks=5': 'custom_hooks takes a list, got 5',
    '+custom_hooks=[5]': 'custom_hooks.0 takes a dict, got 5',
    'param_scheduler=5': 'param_scheduler takes',
    '+custom_hooks.type=EMAHook': "custom_hooks takes a list, got {'type': 'EMAHook'}",
    '+default_hooks.own.priority=LOW': "default_hooks.own takes a dict with the type of a hook, got",
    '+default_hooks.checkpoint.priority=HIGHER': 'default_hooks.checkpoint.priority takes HIGHEST, VERY_HIGH',
    '+default_hooks.checkpoint.priority=101': 'LOWEST, or 0 to 100, got 101',
    'param_scheduler=[5]': 'param_scheduler.0 takes a dict, got 5',
    'default_hooks=5': 'default_hooks takes a dict, got 5',
    'default_hooks.checkpoint=5': 'default_hooks.checkpoint takes a dict, got 5',
    'log_level=LOUD': "log_level takes DEBUG, INFO, WARNING, ERROR or CRITICAL, got 'LOUD'",
    'log_level=5': 'log_level takes DEBUG',
    'model=7': 'model takes a dict, got 7',
    'model=None': 'model takes a dict, got None',
    'model.neck=7': 'model.neck takes a dict, got 7',
    'model.rpn_head.loss_cls=7': 'model.rpn_head.loss_cls takes a dict, got 7',
    'model.rpn_head.loss_bbox.loss_weight=abc': "model.rpn_head.loss_bbox.loss_weight takes a number, got 'abc'",
    'model.backbone.type=None': 'model.backbone.type takes the name of a class, got None',
    'model.backbone.type=7': 'model.backbone.type takes the name of a class, got 7',
    'train_cfg=7': 'train_cfg takes a dict, got 7',
    'env_cfg=5': 'env_cfg takes a dict, got 5',
    'randomness=5': 'randomness takes a dict, got 5',
    'visualizer=5': 'visualizer takes a Visualizer or a dict, got 5',
    'log_processor=5': 'log_processor takes a dict, got 5',
    'resume=maybe': "resume takes True or False, got 'maybe'",
    'load_from=7': 'load_from takes a text, got 7',
    'default_scope=7': 'default_scope takes a text, got 7',
    'auto_scale_lr=7': 'auto_scale_lr takes a dict, got 7',
    'custom_imports=5': 'custom_imports takes a dict, got 5',
    'optim_wrapper.clip_grad=5': 'optim_wrapper.clip_grad takes a dict, got 5',
    'default_hooks.checkpoint.max_keep_ckpts=abc': "max_keep_ckpts takes a whole number, got 'abc'",
    'train_dataloader=7': 'train_dataloader takes a DataLoader or a dict, got 7',
    'train_dataloader.dataset=7': 'train_dataloader.dataset takes a dict, got 7',
    'train_dataloader.sampler=5': 'train_dataloader.sampler takes a dict, got 5',
    'train_dataloader.dataset.pipeline=[]': 'train_dataloader.dataset.pipeline takes a list of transforms, got []',
    'val_dataloader.dataset.pipeline=7': 'val_dataloader.dataset.pipeline takes a list of transforms, got 7',
    'train_dataloader.dataset.pipeline.0=7': 'train_dataloader.dataset.pipeline.0 takes a dict, got 7',
    'train_dataloader.dataset.filter_cfg=5': 'train_dataloader.dataset.filter_cfg takes a dict, got 5',
    'val_evaluator=5': 'val_evaluator takes an Evaluator or a dict or a list, got 5',
    # parts that do not fit
    'model.data_preprocessor.mean=[120.0]': 'model.data_preprocessor.mean takes 3 numbers, one for each channel,',
    'model.data_preprocessor.std=57.1': 'model.data_preprocessor.std takes 3 numbers, one for each channel,',
    'model.backbone.in_channels=4': 'model.data_preprocessor.mean takes 4 numbers, one for each channel,',
    'model.neck.in_channels=[5,64,128,256]': 'model.neck.in_channels takes [32, 64, 128, 256], which',
    'model.neck.in_channels=5': 'model.neck.in_channels takes [32, 64, 128, 256], which the backbone emits, got [5]',
    'model.roi_head.bbox_head.num_classes=7': 'model.roi_head.bbox_head.num_classes takes 4, the classes of',
    'load_from=nowhere.pth': "load_from takes a checkpoint, got 'nowhere.pth', which is no file",
    'model.backbone.depths=[1]': 'depths and num_heads must have one entry a stage each',
}  # fmt: skip
WRONG_SEGMENTORS = {
    'model.decode_head.num_classes=7': 'model.decode_head.num_classes takes 5, the classes of',
    'model.decode_head.in_channels=[1,2,3,4]': 'model.decode_head.in_channels is [1, 2, 3, 4], and the maps',
    'model.decode_head.in_index=[0,1,2,9]': 'model.decode_head.in_index is [0, 1, 2, 9], and there are 4 maps',
    'model.auxiliary_head.in_channels=1': 'model.auxiliary_head.in_channels is 1, and the maps',
    'train_cfg.max_iters=0': 'train_cfg.max_iters takes a number of at least 1, got 0',
}


read = cache(read_config)


def check(cfg):
    check_config(cfg)
    check_fit(cfg)


@pytest.mark.parametrize(
    ('config', 'option'), [(DETECTOR, one) for one in WRONG] + [(SEGMENTOR, one) for one in WRONG_SEGMENTORS]
)
def test_the_key_is_named_before_anything_is_built(record_fault, config, option):
    cfg = copy.deepcopy(read(config))
    apply_options(cfg, parse_options([option]))
    with pytest.raises(ValueError, match=re.escape({**WRONG, **WRONG_SEGMENTORS}[option])) as caught:
        check(cfg)
    assert len(str(caught.value).splitlines()) == 1
    record_fault('bad_commands')


def numbers_of(cls):
    """The names of a constructor's arguments that are numbers, or lists of them."""
    for name, hint in _hints(cls).items():
        plain = {hint, *get_args(hint)} | {inner for one in get_args(hint) for inner in get_args(one)}
        if plain & {int, float} and not plain & {str, bool, torch.Tensor}:
            yield name


ANY_NUMBER = {'pad_value', 'seg_pad_val', 'seg_pad_value', 'mask_pad_value', 'img_pad_value'}


@pytest.mark.parametrize(
    ('registry', 'within', 'of'),
    [(PARAM_SCHEDULERS, 'param_scheduler', ''), (TASK_UTILS, 'sampler', 'sampler'), (DATA_SAMPLERS, 'sampler', ''),
     (MODELS, 'data_preprocessor', 'datapreprocessor')],
    ids=['schedulers', 'samplers of boxes', 'samplers of data', 'preprocessors'],
)  # fmt: skip
def test_every_number_of_these_classes_has_a_range(registry, within, of):
    """So that one that a toolbox adds is not taken in silence."""
    for name in ('mmdet.datasets', 'mmdet.models', 'mmseg.models'):  # which fill the registries
        import_module(name)

    known = {*RANGES, *RANGES_WITHIN[within], *ANY_NUMBER}
    classes = {cls for one in (registry, *registry.children.values()) for cls in one.module_dict.values()}
    classes = [cls for cls in classes if inspect.isclass(cls) and cls.__name__.lower().endswith(of)]
    assert len(classes) >= 5
    unknown = {(cls.__name__, name) for cls in classes for name in numbers_of(cls) if name not in known}
    assert not unknown


@pytest.mark.parametrize(('option', 'made'), [('model.roi_head.bbox_head.num_classes=7', 2),
                                              ('val_evaluator.ann_file=a.json', 'val.json'),
                                              ('train_dataloader.dataset.data_root=elsewhere', 'own')])  # fmt: skip
def test_an_option_that_own_data_overrides_is_named(record_fault, tmp_path, option, made):
    path, _, *words = detection(make_own_data(tmp_path / 'own'), option)
    key, _, value = option.partition('=')
    with pytest.raises(ConfigError, match=rf"{key} follows from own_data, which makes it .*{made}'?, got '?{value}'?$"):
        load_config(str(path), None, parse_options(words), 'none')
    record_fault('bad_commands')


@pytest.mark.parametrize(
    'option',
    ['custom_hooks=None', 'default_hooks.checkpoint=None', 'randomness.seed=None', 'train_dataloader.batch_size=64',
     'model.neck.in_channels=(32,64,128,256)', 'default_hooks.checkpoint.interval=-1', 'optim_wrapper.optimizer.lr=1',
     'model.backbone.drop_path_rate=0', 'default_hooks.checkpoint.max_keep_ckpts=-1',
     '+default_hooks.checkpoint.priority=49', 'model.train_cfg.rcnn.sampler.neg_pos_ub=-1', 'param_scheduler.0.begin=0',
     'model.data_preprocessor.mean=[0,0,0]', '+custom_hooks=[]'],
)  # fmt: skip
def test_what_is_right_stays(option):
    cfg = copy.deepcopy(read(DETECTOR))
    apply_options(cfg, parse_options([option]))
    check(cfg)


def configs():
    return sorted(ROOT.glob('configs/[a-z]*/*.py'))


@pytest.mark.slow
@pytest.mark.parametrize('path', configs(), ids=lambda path: path.stem)
def test_the_configs_of_this_package_are_right(path):
    if 'lora' in path.stem:
        pytest.importorskip('peft', reason='peft is not installed: make install EXTRAS=peers')
    cfg = read_config(path)
    cfg.load_from = None
    check_config(cfg)
    if cfg.get('default_scope') != 'mmpretrain':
        check_fit(cfg)


@pytest.mark.parametrize(
    ('name', 'meant'),
    [
        ('retinanet_r50', 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'),
        ('upernet_r50_ade20k.py', 'mmseg::upernet/'),
        ('mmdet::retinanet_r50', 'retinanet/retinanet_r50_fpn_1x_coco.py'),
        ('mmdet::retinanet/retinanet_r50', 'retinanet/retinanet_r50_fpn_1x_coco.py'),
        ('swin_backbone::mask-rcnn_swin-t', 'mask_rcnn/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'),
        (ROOT / 'configs' / 'mask_rcnn' / 'mask-rcn_swin-t-p4-w7_fpn_1x_coco', 'mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'),
    ],
)
def test_a_config_that_is_not_there_is_told_by_its_like(name, meant):
    with pytest.raises(ValueError, match=r'there is no config .*; did you mean ') as refused:
        read_config(name)
    assert meant in str(refused.value)


@pytest.mark.parametrize('name', ['zzzzzzzzzzzz.py', 'no_folder/mask-rcnn.py', 'mmdet::zzzzzzzzzzzz'])
def test_a_config_like_no_other_is_only_not_there(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"there is no config '[^']+'$"):
        read_config(name)
