"""--cfg-options: whole values, and keys that the config has."""

import pytest
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config, DictAction

from swin_backbone.openmmlab.config.cfg_options import apply_options, parse_options, parse_value

CONFIGS = ROOT / 'configs'
DETECTION = CONFIGS / 'demo' / 'mask-rcnn_swin-nano_fpn_own.py'

ATOMS = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(str),
    st.sampled_from(['True', 'false', 'None', 'AdamW', '/data/pictures', '1e-4', 'mmdet::a/b.py', 'a=b', '{x:1}']),
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: f'[{",".join(parts)}]'),
        st.lists(inner, max_size=4).map(lambda parts: f'({",".join(parts)})'),
    ),
)


@given(text=st.one_of(VALUES, st.lists(ATOMS, min_size=2, max_size=3).map(','.join)))
@settings(max_examples=200, deadline=None)
def test_values_without_spaces_and_quotes_are_mmengines(text):
    assert parse_value(text) == DictAction._parse_iterable(text)


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('/data/my pictures', '/data/my pictures'),
        ('[traffic light,road]', ['traffic light', 'road']),
        ('[ traffic light , road ]', ['traffic light', 'road']),
        ('traffic light,road', ['traffic light', 'road']),
        ('["a, b", \'c d\', e]', ['a, b', 'c d', 'e']),
        ('"[a b,c]"', ['a b', 'c']),
        ('"/data/a,b"', '/data/a,b'),
        ('[(1, 2, 3), [a b, None], 1e-4]', [(1, 2, 3), ['a b', None], 1e-4]),
        ('[[1,2],[3]],4', [[[1, 2], [3]], 4]),
        ("it's here", "it's here"),
        ('/data/run (1)', '/data/run (1)'),
        ('', ''),
        ('[]', []),
        ('()', ()),
        ('1,', [1]),
        ('Größe é', 'Größe é'),
    ],
)
def test_spaces_and_quotes(text, value):
    assert parse_options([f'key={text}']) == {'key': value}


@pytest.mark.parametrize(
    ('word', 'message'),
    [
        ('key', "takes KEY=VALUE, got 'key'"),
        ('=3', "takes KEY=VALUE, got '=3'"),
        ('+=3', 'takes KEY=VALUE'),
        ('++a=1', 'takes KEY=VALUE'),
        ('a..b=1', 'takes KEY=VALUE'),
        ('key=[a,b', 'a bracket that closes is missing'),
        ('key=[a,(b]', 'a bracket that closes is missing'),
        ('key=a],b', 'a bracket that opens is missing'),
        ('key=["a,b]', 'a quote that closes is missing'),
    ],
)
def test_a_word_that_is_no_option(record_fault, word, message):
    with pytest.raises(ValueError, match='--cfg-options') as error:
        parse_options([word])
    assert message in str(error.value)
    record_fault('bad_commands')


@pytest.mark.parametrize(
    ('key', 'message'),
    [
        ('trian_cfg.max_epochs', "the config has no 'trian_cfg'; did you mean train_cfg.max_epochs? To add"),
        ('own_data.trian', "own_data has no 'trian'; did you mean own_data.train?"),
        ('model.backbon.depths', "model has no 'backbon'; did you mean model.backbone.depths?"),
        ('model.backbone.drop_path', "model.backbone has no 'drop_path'; did you mean model.backbone.drop_path_rate?"),
        ('model.backbone.window', "model.backbone has no 'window'; did you mean model.backbone.window_size?"),
        ('T_max', "the config has no 'T_max'; did you mean param_scheduler.1.T_max?"),
        ('train_dataloader.bach_size', 'did you mean train_dataloader.batch_size?'),
        ('zzz', "the config has no 'zzz'; To add the key, write +zzz=..."),
        ('param_scheduler.7.end', 'param_scheduler is a list of 2, which takes an index from 0 to 1, got '),
        ('param_scheduler.-1.end', "from 0 to 1, got '-1'"),
        ('param_scheduler.end', "from 0 to 1, got 'end'"),
        ('train_cfg.max_epochs.x', "train_cfg.max_epochs is 16, which has no 'x'"),
        ('+param_scheduler.7.end', 'param_scheduler is a list of 2'),
        ('+train_cfg.max_epochs.x', "train_cfg.max_epochs is 16, which has no 'x'"),
    ],
)
def test_a_key_that_is_not_there_is_refused(record_fault, key, message):
    cfg = Config.fromfile(DETECTION)
    before = cfg.pretty_text
    cfg.train_cfg.max_epochs = 16
    with pytest.raises(ValueError, match='--cfg-options') as error:
        apply_options(cfg, {key: 3})
    assert message in str(error.value)
    cfg = Config.fromfile(DETECTION)
    assert cfg.pretty_text == before
    record_fault('bad_commands')


@pytest.mark.parametrize(
    'key',
    [
        'model.backbone.drop_path_rate',
        'model.backbone.with_cp',  # an argument of the class, absent in the config
        'model.backbone.frozen_stages',
        'train_dataloader.prefetch_factor',
        'train_dataloader.dataset.indices',  # argument of a base class
        'default_hooks.checkpoint.max_keep_ckpts',
        'optim_wrapper.optimizer.eps',
        'param_scheduler.0.end',
        'work_dir',
        'randomness.seed',
        'randomness',
        'own_data.train.images',
        '+trian_cfg.max_epochs',
        '+own_data.extra.deep.er',
    ],
)
def test_a_key_of_the_config_or_of_a_class_or_with_a_plus_is_set(key):
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    cfg = Config.fromfile(DETECTION)
    cfg.randomness = dict()
    apply_options(cfg, {key: 3})
    node = cfg
    for name in key.lstrip('+').split('.'):
        node = node[int(name)] if name.isdecimal() else node[name]
    assert node == 3


def test_an_option_may_follow_from_the_one_before():
    cfg = Config(dict(model=dict(type='A', neck=None)))
    apply_options(cfg, {'+model.extra': dict(a=1), 'model.extra.a': 2})
    assert cfg.model.extra.a == 2
