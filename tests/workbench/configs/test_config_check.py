"""Classes that do not fit the data are named by key, all legal settings pass, and names of configs have suggestions."""

import pytest


from helpers.openmmlab.jobs import load_config
from helpers import ROOT
from helpers.openmmlab.own_data import detection_of, make_own_data

from swin_backbone.workbench.configs.cfg_options import parse_options
from swin_backbone.workbench.configs.check import check_classes
from swin_backbone.openmmlab import config_files
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.errors import ConfigError

DETECTOR = 'swin_backbone::demo/mask-rcnn_swin-nano_fpn_shapes.py'
SEGMENTOR = 'swin_backbone::demo/swin-nano_upernet_shapes.py'


@pytest.mark.parametrize(
    ('config', 'head', 'number'), [(DETECTOR, 'roi_head.bbox_head', 4), (SEGMENTOR, 'decode_head', 5)]
)
def test_a_number_of_classes_that_does_not_fit_is_named(record_fault, config, head, number):
    cfg = load_config(config, None, parse_options([f'model.{head}.num_classes=7']), 'none')
    with pytest.raises(ConfigError, match=rf'^model\.{head}\.num_classes takes {number}, the classes of .*, got 7$'):
        check_classes(cfg)
    record_fault('bad_commands')


@pytest.mark.parametrize(('option', 'made'), [('model.roi_head.bbox_head.num_classes=7', 2),
                                              ('val_evaluator.ann_file=a.json', 'val.json'),
                                              ('train_dataloader.dataset.data_root=elsewhere', 'own')])  # fmt: skip
def test_an_option_that_contradicts_the_data_is_named(record_fault, tmp_path, option, made):
    config, _, data, _, *words = detection_of(make_own_data(tmp_path / 'own'), option)
    key, _, value = option.partition('=')
    with pytest.raises(ConfigError, match=rf"{key} follows from --data, which makes it .*{made}'?, got '?{value}'?$"):
        load_config(str(config), None, parse_options(words), 'none', data=data)
    record_fault('bad_commands')


@pytest.mark.slow
@pytest.mark.parametrize('path', sorted(ROOT.glob('configs/[a-z]*/*.py')), ids=lambda path: path.stem)
def test_the_configs_of_this_package_are_right(path):
    if 'lora' in path.stem:
        pytest.importorskip('peft', reason='peft is not installed: make install EXTRAS=peers')
    cfg = read_config(path)
    if cfg.get('default_scope') != 'mmpretrain':
        check_classes(cfg)


@pytest.mark.parametrize(
    ('name', 'meant'),
    [
        ('retinanet_r50', 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'),
        ('upernet_r50_ade20k.py', 'mmseg::upernet/'),
        ('mmdet::retinanet/retinanet_r50', 'retinanet/retinanet_r50_fpn_1x_coco.py'),
        (ROOT / 'configs' / 'mask_rcnn' / 'mask-rcn_swin-t-p4-w7_fpn_1x_coco', 'mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'),
    ],
)
def test_a_config_that_is_not_there_is_told_by_its_like(name, meant):
    with pytest.raises(ConfigError, match=r'there is no config .*; did you mean ') as refused:
        read_config(name)
    assert meant in str(refused.value)
    with pytest.raises(ConfigError, match=r"there is no config '[^']+'$"):
        read_config('no_folder/zzzzzzzzzzzz.py')


@pytest.mark.parametrize(('toolbox', 'extra'), [('mmpretrain', 'cls'), ('mmrotate', 'rotate')])
def test_a_toolbox_that_is_not_installed_names_its_extra(monkeypatch, toolbox, extra):
    monkeypatch.setattr(config_files, 'find_spec', lambda _: None)
    with pytest.raises(ConfigError, match=rf'`pip install -e "\.\[{extra}\]"` installs it'):
        read_config(f'{toolbox}::a/b.py')
