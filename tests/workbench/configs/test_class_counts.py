"""Classes that do not fit the data are named by key, all legal settings pass, and names of configs have suggestions."""

import copy
from types import SimpleNamespace

import pytest
from helpers import ROOT
from helpers.openmmlab.jobs import load_config
from helpers.openmmlab.own_data import detection_of, make_own_data
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope
from mmseg.datasets import CityscapesDataset

from swin_backbone.checkpoints import CheckpointError
from swin_backbone.openmmlab import config_files
from swin_backbone.openmmlab.config_files import read_config
from swin_backbone.openmmlab.errors import ConfigError
from swin_backbone.workbench.configs.cfg_options import parse_options
from swin_backbone.workbench.configs.class_counts import find_class_names, require_class_count, require_class_counts
from swin_backbone.workbench.export import predictor

DETECTOR = 'swin_backbone::demo/mask-rcnn_swin-nano_fpn_shapes.py'
SEGMENTOR = 'swin_backbone::demo/swin-nano_upernet_shapes.py'


@pytest.mark.parametrize(
    ('config', 'head', 'number'), [(DETECTOR, 'roi_head.bbox_head', 4), (SEGMENTOR, 'decode_head', 5)]
)
def test_a_number_of_classes_that_does_not_fit_is_named(record_fault, config, head, number):
    cfg = load_config(config, None, parse_options([f'model.{head}.num_classes=7']), 'none')
    with pytest.raises(ConfigError, match=rf'^model\.{head}\.num_classes takes {number}, the classes of .*, got 7$'):
        require_class_counts(cfg)
    record_fault('bad_commands')


@pytest.mark.parametrize(
    ('model', 'message'),
    [
        (dict(mask_head=dict(type='SOLOHead', num_classes=80)), r'model\.mask_head\.num_classes takes 2, .*, got 80$'),
        (
            dict(panoptic_head=dict(num_things_classes=80, num_stuff_classes=0), panoptic_fusion_head=dict()),
            r'model\.panoptic_head\.num_things_classes \+ num_stuff_classes takes 2, .*, got 80 \+ 0$',
        ),
    ],
    ids=['SOLO', 'Mask2Former'],
)
def test_the_classes_of_models_without_a_head_of_boxes(model, message):
    with pytest.raises(ConfigError, match=message):
        require_class_count(Config(dict(model=model)), ('nut', 'bolt'), 'train_dataloader.dataset')


@pytest.mark.parametrize(
    'model',
    [
        dict(mask_head=dict(num_classes=80), bbox_head=dict(num_classes=2)),  # YOLACT
        dict(panoptic_head=dict(num_things_classes=1, num_stuff_classes=1), panoptic_fusion_head=dict()),
        dict(panoptic_fusion_head=dict(), roi_head=dict(bbox_head=dict(num_classes=1))),  # of the things
        dict(language_model=dict(), bbox_head=dict(num_classes=256)),
    ],
)
def test_classes_that_a_model_may_have(model):
    require_class_count(Config(dict(model=model)), ('nut', 'bolt'), 'train_dataloader.dataset')


def test_a_data_set_without_metainfo_has_the_classes_of_its_class():
    nuts = type('Nuts', (), dict(METAINFO=dict(classes=('nut', 'bolt'))))
    DATASETS.register_module(module=nuts, force=True)
    assert find_class_names(dict(type=nuts)) == find_class_names(dict(type='Nuts')) == ('nut', 'bolt')
    for scope in ('mmdet', 'mmseg'):  # a name of each toolbox's own registry
        with DefaultScope.overwrite_default_scope(scope):
            names = [find_class_names(dict(type=kind)) for kind in ('mmdet.CocoDataset', 'CityscapesDataset')]
        assert [*map(len, names)] == [80, 8 if scope == 'mmdet' else 19]
    cfg = Config(dict(model=dict(bbox_head=dict(num_classes=3)), train_dataloader=dict(dataset=dict(type='Nuts'))))
    with pytest.raises(ConfigError, match=r'num_classes takes 2, the classes of train_dataloader\.dataset, got 3'):
        require_class_counts(cfg)


def test_a_tracker_is_tested_on_more_classes_than_it_has():
    require_class_counts(
        read_config('mmdet::sort/sort_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test-mot17halfval.py')
    )


def test_an_exported_model_of_other_classes_than_a_published_data_set(monkeypatch):
    cfg = read_config('mmseg::fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py')
    names = [*CityscapesDataset.METAINFO['classes']]
    for classes, error, message in (
        (names[::-1], CheckpointError, 'has the classes of the data in another order'),
        (['street', *names[1:]], UserWarning, 'has other classes, as street in place of road'),
    ):
        exported = SimpleNamespace(manifest=dict(classes=classes, task='segmentation'))
        monkeypatch.setattr(predictor, 'RuntimeModel', lambda *_, exported=exported: exported)
        with pytest.warns(error, match=message) if error is UserWarning else pytest.raises(error, match=message):
            predictor.use_exported_model(copy.deepcopy(cfg), 'exported')


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
        require_class_counts(cfg)


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
