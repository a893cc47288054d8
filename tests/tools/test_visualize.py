"""tools/visualize.py and tools/plot_log.py with a user's command lines, and the curves of a training."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from helpers.in_process import ROOT, draw_curves, error_of, run, run_well
from helpers.openmmlab.random_models import DETECTION, SEGMENTATION, save_random_model
from mmengine.config import Config

from swin_backbone.workbench.configs import visualizer
from swin_backbone.workbench.runner.hooks.curves import CurvesHook

DETECTION_V2 = ROOT / 'configs' / 'demo' / 'mask-rcnn_swinv2-nano_fpn_shapes.py'
RETINANET = ROOT / 'configs' / 'retinanet' / 'retinanet_swin-t-p4-w7_fpn_1x_coco.py'


def visualize(*arguments):
    result = run_well('tools/visualize.py', *arguments)
    out = Path(result.stdout.splitlines()[-1])  # imports of toolboxes print lines above
    assert out.stat().st_size > 1000
    return out


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """Write a picture and random checkpoints."""
    folder = tmp_path_factory.mktemp('files')
    cv2.imwrite(str(folder / 'picture.png'), np.random.RandomState(0).randint(0, 255, (96, 128, 3), np.uint8))
    for path in (DETECTION, DETECTION_V2, SEGMENTATION):
        save_random_model(path, folder)
    return folder


@pytest.mark.parametrize('command', ['windows', 'masks'])
def test_geometry(tmp_path, command):
    size = ['--shape', 75, 100, '--window', 7, 5, '--shift', '--mask-padding']
    assert visualize(command, *size, '--out', tmp_path / 'a.png').read_bytes().startswith(b'\x89PNG')
    assert '<svg' in visualize(command, *size, '--stage', 2, '--out', tmp_path / 'a.html').read_text()


@pytest.mark.parametrize(
    ('config', 'command', 'options'),
    [
        (DETECTION, 'attention', ['--point', '127,95', '--stage', 2]),
        (DETECTION, 'cam', ['--method', 'eigen']),
        (DETECTION, 'bias', ['--stage', 4, '--new-window', 9]),
        (DETECTION_V2, 'attention', ['--point', '0,0']),
        (DETECTION_V2, 'bias', ['--window', 8]),
        (SEGMENTATION, 'features', []),
        (SEGMENTATION, 'cam', []),
    ],
)
def test_models(tmp_path, files, config, command, options):
    checkpoint = files / f'{config.stem}.pth'
    model = [checkpoint] if command == 'bias' else [files / 'picture.png', config, checkpoint]
    visualize(command, *model, *options, '--out', tmp_path / 'a.png')


def test_the_score_of_a_one_stage_detector_has_a_gradient(tmp_path, files):
    cfg = Config.fromfile(RETINANET)
    cfg.model.backbone.update(arch='nano', init_cfg=None)
    cfg.model.neck.in_channels = [64, 128, 256]
    cfg.model.test_cfg.score_thr = 0.0
    cfg.test_dataloader.dataset.pipeline[1].scale = (128, 128)
    cfg.dump(tmp_path / 'retinanet.py')
    checkpoint = save_random_model(tmp_path / 'retinanet.py', tmp_path)
    visualize('cam', files / 'picture.png', tmp_path / 'retinanet.py', checkpoint, '--out', tmp_path / 'a.png')


def test_attention_without_a_checkpoint(tmp_path, files):
    visualize('attention', files / 'picture.png', DETECTION, '--point', '100,90', '--out', tmp_path / 'a.png')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['masks', '--shape', '9', '9', '--out', 'a.gif'], "written as .png or .html, got 'a.gif'"),
        (['features', '{files}/picture.png', '{files}/picture.png', 'a.pth'], 'Only py/yml/yaml/json'),
        (['attention', 'missing.png', str(DETECTION), '--point', '1,1'], "'missing.png' is none"),
        (['attention', '{files}/picture.png', str(DETECTION), '--point', '128,1'],
         '--point takes a pixel X,Y of a picture 128 wide'),
        (['cam', '{files}/picture.png', str(SEGMENTATION), '{files}/swin-nano_upernet_shapes.pth', '--label', 'cat'],
         "the class must be one of background"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_sentence(files, arguments, message):
    assert message in error_of('tools/visualize.py', *(argument.format(files=files) for argument in arguments))


def test_what_cannot_be_built_is_a_sentence_and_with_debug_more(files):
    model = [files / 'picture.png', DETECTION, files / f'{DETECTION.stem}.pth', '--cfg-options', 'model.neck.type=FPNN']
    assert 'FPNN is not in the mmdet::model registry' in error_of('tools/visualize.py', 'features', *model)
    with pytest.raises(KeyError, match='FPNN is not in the mmdet::model registry'):
        run('tools/visualize.py', 'features', *model, '--debug')


def write_scalars(work_dir):
    (work_dir / 'one' / 'vis_data').mkdir(parents=True)
    records = [dict(lr=0.1, loss=2.0, epoch=1, iter=5, step=5), dict(mIoU=30.0, step=1)]
    (work_dir / 'one' / 'vis_data' / 'scalars.json').write_text('\n'.join(map(json.dumps, records)))


def test_plot_log(tmp_path):
    write_scalars(tmp_path / 'work')
    run_well('tools/plot_log.py', tmp_path / 'work', tmp_path / 'work' / 'one', '--out', tmp_path / 'a.png')
    assert (tmp_path / 'a.png').read_bytes().startswith(b'\x89PNG')
    assert 'no folder in which mmengine wrote' in error_of('tools/plot_log.py', tmp_path)


def test_curves_are_drawn_at_each_validation_and_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(CurvesHook, '_draw', draw_curves)
    write_scalars(tmp_path)
    lines = []
    logger = SimpleNamespace(log=lambda level, line: lines.append((level, line)))
    runner = SimpleNamespace(work_dir=str(tmp_path), log_dir=str(tmp_path / 'one'), logger=logger, _train_loop=None)
    picture, hook = tmp_path / 'one' / 'curves.png', CurvesHook()
    hook.after_val_epoch(runner)
    assert not picture.exists()  # a test, and no training
    runner._train_loop = object()
    hook.after_val_epoch(runner)
    assert picture.read_bytes().startswith(b'\x89PNG')
    picture.unlink()
    hook.after_train(runner)
    assert picture.exists()
    runner.work_dir = str(tmp_path / 'none')
    hook.after_train(runner)
    assert [level for level, _ in lines] == [logging.WARNING]
    assert lines[0][1].startswith('curves.png was not drawn')


@pytest.mark.parametrize(('name', 'backend'), [('tensorboard', 'TensorboardVisBackend'), ('wandb', 'WandbVisBackend')])
def test_vis(name, backend, monkeypatch):
    monkeypatch.setattr(visualizer, 'find_spec', lambda name: None)
    with pytest.raises(ValueError, match=f'--vis {name} needs .* make install EXTRAS={name}, or pip install {name}'):
        visualizer.enable_vis(Config(dict()), name)
    monkeypatch.setattr(visualizer, 'find_spec', lambda name: name)
    for cfg in (Config.fromfile(DETECTION), Config(dict())):
        for again in (name, name):
            visualizer.enable_vis(cfg, again)
        assert [one['type'] for one in cfg.visualizer.vis_backends] == ['LocalVisBackend', backend]
