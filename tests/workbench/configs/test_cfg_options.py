"""--cfg-options: whole values, and keys that the config has."""

import pytest
from helpers import ROOT
from mmengine.config import Config, DictAction

from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.workbench.configs.cfg_options import apply_options, get_setting, parse_options

DETECTION = ROOT / 'configs' / 'demo' / 'mask-rcnn_swin-nano_fpn_own.py'


@pytest.mark.parametrize(
    'text', ['3', '1e-4', 'True', 'None', 'a=b', '1,2', '[(1,2,3),[a,None],x]', '1,', '', '[]', '()']
)
def test_values_without_spaces_are_mmengines(text):
    assert parse_options([f'key={text}']) == {'key': DictAction._parse_iterable(text)}


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('/data/my pictures', '/data/my pictures'),
        ('[ traffic light , road ]', ['traffic light', 'road']),
        ('traffic light,road', ['traffic light', 'road']),
        ('["a, b", \'c d\', e]', ['a, b', 'c d', 'e']),
        ('"[a b,c]"', ['a b', 'c']),
        ('"/data/a,b"', '/data/a,b'),
        ('["a, {}", b]', ['a, {}', 'b']),
        ('"a,dict(b)"', 'a,dict(b)'),
        ('[(1, 2, 3), [a b, None], 1e-4]', [(1, 2, 3), ['a b', None], 1e-4]),
        ('[[1,2],[3]],4', [[[1, 2], [3]], 4]),
        ("it's here", "it's here"),
        ('/data/run (1)', '/data/run (1)'),
        ('epoch_{}.pth', 'epoch_{}.pth'),
        ('{epoch:04d}.pth', '{epoch:04d}.pth'),
    ],
)
def test_spaces_and_quotes(text, value):
    assert parse_options([f'key={text}']) == {'key': value}


@pytest.mark.parametrize(
    ('word', 'message'),
    [
        ('key', "takes KEY=VALUE, got 'key'"),
        ('a=[a,(b]', 'the brackets'),
        ('a=[1,2],[3]', 'the brackets do not match'),
        ('a.b=[dict(type="C", d=[1,2])]', 'a dict is set key by key, as a.type=N, in a list a.0.type=N'),
        ('a={"type": "C", "d": 1}', 'a dict is set key by key'),
        ('a=[1,dict(b=1)]', 'a dict is set key by key'),
        ('a=(0.5, {"b": 1})', 'a dict is set key by key'),
        ('a={}', 'a dict is set key by key'),
    ],
)
def test_a_word_that_is_no_option(record_fault, word, message):
    with pytest.raises(ValueError, match=f'--cfg-options .*{message}'):
        parse_options([word])
    record_fault('bad_commands')


@pytest.mark.parametrize(
    ('key', 'message'),
    [
        ('trian_cfg.max_epochs', "the config has no 'trian_cfg'; did you mean train_cfg.max_epochs? To add"),
        ('env_cfg.mp_cgf', "env_cfg has no 'mp_cgf'; did you mean env_cfg.mp_cfg?"),
        ('model.backbon.depths', "model has no 'backbon'; did you mean model.backbone.depths?"),
        ('model.backbone.drop_path', 'did you mean model.backbone.drop_path_rate?'),
        ('val_evaluator.format', 'did you mean val_evaluator.format_only?'),  # CocoMetric
        ('T_max', "the config has no 'T_max'; did you mean param_scheduler.1.T_max?"),
        ('=', "the config has no '='; to add the key, write +==..."),
        ('param_scheduler.7.end', 'param_scheduler is a list of 2, which takes an index from 0 to 1, got '),
        ('+param_scheduler.end', "from 0 to 1, got 'end'"),
        ('+train_cfg.max_epochs.x', "train_cfg.max_epochs is 16, which has no 'x'"),
    ],
)
def test_a_key_that_is_not_there_is_refused(record_fault, key, message):
    cfg = Config.fromfile(DETECTION)
    cfg.train_cfg.max_epochs = 16
    before = cfg.to_dict()
    with pytest.raises(ValueError, match='--cfg-options') as error:
        apply_options(cfg, {key: 3})
    assert message in str(error.value)
    assert cfg.to_dict() == before
    record_fault('bad_commands')


@pytest.mark.parametrize(
    'key',
    [
        'model.backbone.drop_path_rate',
        'model.backbone.frozen_stages',  # an argument of the class, absent in the config
        'train_dataloader.prefetch_factor',
        'param_scheduler.0.end',
        'train_dataloader.dataset.pipeline.0',
        'train_dataloader.dataset.indices',  # an argument of a base class
        'work_dir',  # an argument of the Runner
        'randomness.seed',
        '+trian_cfg.max_epochs',
        '+env_cfg.extra.deep.er',
    ],
)
def test_a_key_of_the_config_or_of_a_class_or_with_a_plus_is_set(key):
    cfg = Config.fromfile(DETECTION)
    cfg.randomness = dict()
    apply_options(cfg, {key: 3})
    assert get_setting(cfg, key) == 3


def test_an_argument_that_a_class_would_ignore_is_refused():
    cfg = read_config('mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py')
    with pytest.raises(ValueError, match=r'did you mean val_evaluator\.iou_metrics\?'):
        apply_options(cfg, {'val_evaluator.iou_metric': ['mDice']})


def test_an_option_may_follow_from_the_one_before():
    cfg = Config(dict(model=dict(type='A', neck=None)))
    apply_options(cfg, {'+model.extra': dict(a=1), 'model.extra.a': 2})
    assert cfg.model.extra.a == 2
