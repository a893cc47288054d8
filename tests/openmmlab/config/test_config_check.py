"""Parts of a config that do not fit are named by key, and all legal values pass."""

import pytest

pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')

import copy
import re
from functools import cache

from helpers import ROOT
from helpers.openmmlab.own_data import detection, make_own_data

from swin_backbone.openmmlab.config.cfg_options import apply_options, parse_options
from swin_backbone.openmmlab.config.check import check_fit
from swin_backbone.openmmlab.config.files import read_config
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.openmmlab.runtime import load_config

DETECTOR = 'swin_backbone::demo/mask-rcnn_swin-nano_fpn_shapes.py'
SEGMENTOR = 'swin_backbone::demo/swin-nano_upernet_shapes.py'

WRONG = {
    'model.data_preprocessor.mean=[120.0]': 'model.data_preprocessor.mean takes 3 numbers, one for each channel,',
    'model.data_preprocessor.std=57.1': 'model.data_preprocessor.std takes 3 numbers, one for each channel,',
    'model.backbone.in_channels=4': 'model.data_preprocessor.mean takes 1 number for all channels,',
    'model.neck.in_channels=[5,64,128,256]': 'model.neck.in_channels takes [32, 64, 128, 256], the channels',
    'model.neck.in_channels=5': 'model.neck.in_channels takes [32, 64, 128, 256], the channels of the',
    'model.roi_head.bbox_head.num_classes=7': 'model.roi_head.bbox_head.num_classes takes 4, the classes of',
    'model.backbone.depths=[1]': 'depths and num_heads take one entry for each stage',
    'model=None': 'model takes a dict, got None',
}  # fmt: skip
WRONG_SEGMENTORS = {
    'model.decode_head.num_classes=7': 'model.decode_head.num_classes takes 5, the classes of',
    'model.decode_head.in_channels=[1,2,3,4]': 'model.decode_head.in_channels is [1, 2, 3, 4], and the maps',
    'model.decode_head.in_index=[0,1,2,9]': 'model.decode_head.in_index is [0, 1, 2, 9], and there are 4 maps',
    'model.auxiliary_head.in_channels=1': 'model.auxiliary_head.in_channels is 1, and the maps',
}


read = cache(read_config)


@pytest.mark.parametrize(
    ('config', 'option'), [(DETECTOR, one) for one in WRONG] + [(SEGMENTOR, one) for one in WRONG_SEGMENTORS]
)
def test_parts_that_do_not_fit_are_named(record_fault, config, option):
    cfg = copy.deepcopy(read(config))
    apply_options(cfg, parse_options([option]))
    with pytest.raises(ValueError, match=re.escape({**WRONG, **WRONG_SEGMENTORS}[option])) as caught:
        check_fit(cfg)
    assert len(str(caught.value).splitlines()) == 1
    record_fault('bad_commands')


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
    ('config', 'option'),
    [
        (SEGMENTOR, 'model.auxiliary_head.loss_decode.loss_weight=-0.1'),
        (DETECTOR, 'model.neck.in_channels=(32,64,128,256)'),
        (DETECTOR, 'default_hooks.checkpoint.interval=-1'),
    ],
)
def test_legal_values_pass(config, option):
    check_fit(load_config(config, None, parse_options([option]), 'none', with_data=False))


def test_all_settings_of_a_users_own_classes_pass(tmp_path):
    own = "dict(type='OwnHook', interval=0.5, times=0, prob=3, seed=-1, max_norm=-1, lr=float('nan'), sampler='odd')"
    base = ROOT / 'configs' / 'demo' / 'mask-rcnn_swin-nano_fpn_shapes.py'
    (tmp_path / 'own.py').write_text(f"_base_ = '{base}'\ncustom_hooks = [{own}]\n")
    cfg = load_config(str(tmp_path / 'own.py'), None, None, 'none', with_data=False)
    check_fit(cfg)
    assert cfg.custom_hooks[0].interval == 0.5


def configs():
    return sorted(ROOT.glob('configs/[a-z]*/*.py'))


@pytest.mark.slow
@pytest.mark.parametrize('path', configs(), ids=lambda path: path.stem)
def test_the_configs_of_this_package_are_right(path):
    if 'lora' in path.stem:
        pytest.importorskip('peft', reason='peft is not installed: make install EXTRAS=peers')
    cfg = read_config(path)
    cfg.load_from = None
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
