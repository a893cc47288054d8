"""Train, test and run a classifier of mmpretrain by the tools; pretrain by SimMIM."""

import json
import pickle
import shutil
from collections import Counter

import cv2
import numpy as np
import pytest
import torch
from helpers.in_process import ROOT, error_of, run_well
from mmengine.fileio import load
from mmengine.registry import MODELS, DefaultScope

from swin_backbone import SwinBackbone, SwinV2Backbone, load_checkpoint
from swin_backbone.openmmlab.config_files import read_config

pytestmark = pytest.mark.toolboxes

PUBLISHED = ROOT / 'configs' / 'swin_transformer' / 'swin-tiny_16xb64_in1k.py'
DEMO = ROOT / 'configs' / 'demo' / 'swin-nano_shapes-crops.py'
SIMMIM = ROOT / 'configs' / 'demo' / 'simmim_swin-nano_shapes.py'
SIMMIM_V2 = ROOT / 'configs' / 'demo' / 'simmim_swinv2-nano_shapes.py'
CLASSES = ['circle', 'square', 'triangle', 'star']


@pytest.fixture(autouse=True, scope='module')
def mmpretrain():
    return pytest.importorskip('mmpretrain', reason='mmpretrain is not installed: make install EXTRAS=cls')


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    out = tmp_path_factory.mktemp('shapes')
    run_well('tools/make_shapes_dataset.py', out, '--train', 6, '--val', 4, '--shape', 64, '--crops')
    return out


METAFILE = load(PUBLISHED.with_name('metafile.yml'))['Models']


@pytest.mark.parametrize('model', METAFILE, ids=lambda model: model['Name'])
def test_parameters_of_each_config_equal_the_metafile(model):
    cfg = read_config(ROOT / model['Config'])
    with DefaultScope.overwrite_default_scope('mmpretrain'), torch.device('meta'):
        built = MODELS.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    assert sum(parameter.numel() for parameter in built.parameters()) == model['Metadata']['Parameters']
    assert built.head.fc.out_features == 1000


def options(*more, loaders=('train', 'val', 'test')):
    return [
        '--cfg-options',
        *(f'{loader}_dataloader.{key}' for loader in loaders for key in ('num_workers=0', 'persistent_workers=False')),
        'default_hooks.logger.interval=1',
        'default_hooks.checkpoint.interval=1',
        *more,
    ]


def scalars(work_dir):
    """Return the log of the only run in a working folder."""
    (log,) = work_dir.glob('*/vis_data/scalars.json')
    return list(map(json.loads, log.read_text().splitlines()))


@pytest.fixture(scope='module')
def imagenet(tmp_path_factory):
    """Write a few pictures in the layout of ImageNet, with the lists of the first release."""
    root = tmp_path_factory.mktemp('imagenet')
    rng = np.random.default_rng(0)
    for split, number in (('train', 4), ('val', 2)):
        (root / split).mkdir()
        for index in range(number):
            pixels = rng.integers(0, 256, (40 + 9 * index, 61, 3), dtype=np.uint8)
            cv2.imwrite(str(root / split / f'{index}.JPEG'), pixels)
        (root / f'{split}.txt').write_text(''.join(f'{index}.JPEG {index}\n' for index in range(number)))
    return root


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of mmpretrain's parts of the recipe in training."""
    from mmpretrain.models.losses import LabelSmoothLoss
    from mmpretrain.models.utils.batch_augments import CutMix, Mixup

    counts = Counter()

    def count(kind, name):
        original = getattr(kind, name)

        def call(self, *args, **kwargs):
            counts[kind.__name__] += 1
            return original(self, *args, **kwargs)

        monkeypatch.setattr(kind, name, call)

    count(LabelSmoothLoss, 'forward')
    count(Mixup, 'mix')
    count(CutMix, 'mix')
    return counts


def test_the_published_recipe_trains_and_tests(tmp_path, imagenet, calls):
    """Its transforms, Mixup and CutMix, label smoothing, the warm-up; and EMA, which the paper does without."""
    config = tmp_path / 'config.py'
    config.write_text(
        f'_base_ = {str(PUBLISHED)!r}\n'
        "model = dict(backbone=dict(arch='nano', depths=(1, 1, 1, 1)), head=dict(in_channels=256))\n"
        f"train_dataloader = dict(dataset=dict(data_root={str(imagenet)!r}, ann_file='train.txt'), batch_size=4)\n"
        f"val_dataloader = dict(dataset=dict(data_root={str(imagenet)!r}, ann_file='val.txt'), batch_size=2)\n"
        'test_dataloader = val_dataloader\n'
        'train_cfg = dict(max_epochs=22, val_interval=22)\n'  # two steps after the warm-up
        "custom_hooks = [dict(type='EMAHook', momentum=0.5)]\n"
    )
    work = tmp_path / 'work'
    common = options('default_hooks.checkpoint.interval=22')
    trained = run_well('tools/train.py', config, '--work-dir', work, *common)
    assert calls['LabelSmoothLoss'] == calls['Mixup'] + calls['CutMix'] == 22
    assert min(calls['Mixup'], calls['CutMix']) > 0
    rates = [line['lr'] for line in scalars(work) if 'lr' in line]
    assert rates[:20] == sorted(rates[:20])
    assert (rates[0], rates[20]) == (pytest.approx(1e-6), pytest.approx(1e-3, rel=0.1))
    assert rates[21] < rates[20]
    assert 'ema_state_dict' in torch.load(work / 'epoch_22.pth', weights_only=False)
    assert 'accuracy/top1' in trained.stdout

    arguments = [config, work / 'epoch_22.pth', '--work-dir', work]
    outputs = ['--out', tmp_path / 'out.pkl', '--show-dir', tmp_path / 'drawn']
    tested = run_well('tools/test.py', *arguments, *outputs, *common)
    assert 'accuracy/top5: ' in tested.stdout
    assert len(pickle.loads((tmp_path / 'out.pkl').read_bytes())) == 2
    assert len(list((tmp_path / 'drawn').glob('*.png'))) == 2

    flipped = run_well('tools/test.py', *arguments, '--tta', *common)
    assert 'accuracy/top1: ' in flipped.stdout


@pytest.fixture(scope='module')
def trained(tmp_path_factory, shapes):
    work = tmp_path_factory.mktemp('trained')
    run_well('tools/train.py', DEMO, '--work-dir', work, *demo_options(shapes, 'train_cfg.max_epochs=1'))
    return work / 'epoch_1.pth'


def demo_options(shapes, *more):
    roots = (f'{loader}_dataloader.dataset.data_root={shapes}' for loader in ('train', 'val', 'test'))
    return options(*roots, 'model.backbone.depths=[1,1,1,1]', *more)


def test_a_classifier_says_the_class_of_a_picture(tmp_path, shapes, trained):
    pictures = sorted((shapes / 'images' / 'val').glob('*.png'))
    arguments = ['--out-dir', tmp_path, *demo_options(shapes)]
    seen = run_well('tools/infer.py', *pictures, DEMO, '--weights', trained, *arguments)
    results = json.loads((tmp_path / 'results.json').read_text())
    assert [picture['file_name'] for picture in results] == [str(path) for path in pictures]
    for picture in results:
        assert picture['class'] in CLASSES
        assert picture['class'] == picture['top'][0]['class']
        assert sorted(one['class'] for one in picture['top']) == sorted(CLASSES)
        assert sum(one['score'] for one in picture['top']) == pytest.approx(1, abs=1e-3)
        assert f'{picture["file_name"]}: {picture["class"]} {picture["score"]:.3f}' in seen.stdout
    for path in pictures:  # the picture has the text
        drawn = cv2.imread(str(tmp_path / 'overlays' / f'{path.stem}.jpg')).astype(int)
        assert np.abs(drawn - cv2.imread(str(path))).max() > 100


def test_a_picture_gets_the_scores_that_testing_gives_it(tmp_path, shapes, trained):
    names = [line.split()[0] for line in (shapes / 'annotations' / 'crops_val.txt').read_text().splitlines()]
    outputs = ['--work-dir', tmp_path / 'work', '--out', tmp_path / 'out.pkl']
    run_well('tools/test.py', DEMO, trained, *outputs, *demo_options(shapes))
    paths = [shapes / 'crops' / 'val' / name for name in names]
    run_well('tools/infer.py', *paths, DEMO, '--weights', trained, '--out-dir', tmp_path, *demo_options(shapes))
    scores = {one['file_name']: one['score'] for one in json.loads((tmp_path / 'results.json').read_text())}
    expected = pickle.loads((tmp_path / 'out.pkl').read_bytes())
    assert len(scores) == len(expected) == len(paths)
    for path, sample in zip(paths, expected):
        assert scores[str(path)] == pytest.approx(sample['pred_score'].max().item(), rel=1e-4), path


def test_a_folder_for_each_class_is_trained_on(tmp_path, shapes):
    """Three of the demo's four classes, with Mixup, whose number of classes follows too."""
    data = tmp_path / 'own'
    for kind in CLASSES[:3]:
        shutil.copytree(shapes / 'crops' / 'train' / kind, data / kind)
    config, work = tmp_path / 'config.py', tmp_path / 'work'
    config.write_text(
        f"_base_ = {str(DEMO)!r}\nmodel = dict(train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8)]))\n"
    )
    small = options('model.backbone.depths=[1,1,1,1]')
    trained = run_well('tools/train.py', config, '--data', data, '--epochs', 1, '--work-dir', work, *small)
    assert 'accuracy/top1' in trained.stdout
    assert 'a fifth of the pictures is for validation' in trained.stdout
    tested = run_well('tools/test.py', work / 'config.py', work / 'epoch_1.pth', '--work-dir', tmp_path / 'test')
    assert 'accuracy/top1: ' in tested.stdout


def test_a_checkpoint_of_another_number_of_classes_is_named(tmp_path, shapes, trained):
    more = demo_options(shapes, 'model.head.num_classes=7', 'data_preprocessor.num_classes=7')
    error = error_of('tools/test.py', DEMO, trained, '--work-dir', tmp_path, *more)
    assert 'model.head.num_classes takes 4, the classes of train_dataloader.dataset, got 7' in error


@pytest.mark.slow
@pytest.mark.parametrize(('config', 'kind'), [(SIMMIM, SwinBackbone), (SIMMIM_V2, SwinV2Backbone)])
def test_what_simmim_pretrains_is_loaded_and_fine_tuned(tmp_path, config, kind):
    shapes = tmp_path / 'shapes'
    run_well('tools/make_shapes_dataset.py', shapes, '--train', 100, '--val', 4, '--shape', 96, '--crops')
    more = options(f'train_dataloader.dataset.data_root={shapes}', 'train_dataloader.batch_size=8', loaders=('train',))
    work = tmp_path / 'simmim'
    run_well('tools/train.py', config, '--work-dir', work, *more)  # 4 epochs of 13 steps
    losses = [line['loss'] for line in scalars(work)]
    assert len(losses) >= 50
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])

    report = load_checkpoint(kind(arch='nano', window_size=6), work / 'epoch_4.pth')
    assert sorted(report.missing) == [f'norm{i}.{name}' for i in range(4) for name in ('bias', 'weight')]

    more = demo_options(
        shapes,
        'model.backbone.depths=[2,2,2,2]',
        f'model.backbone.type={kind.__name__}',
        'model.backbone.window_size=6',
        f'load_from={work / "epoch_4.pth"}',
        'train_cfg.max_epochs=1',
    )
    tuned = run_well('tools/train.py', DEMO, '--work-dir', tmp_path / 'tuned', *more)
    assert 'accuracy/top1' in tuned.stdout
