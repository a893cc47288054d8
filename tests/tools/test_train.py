"""tools/train.py and tools/test.py on made pictures: to the end, after a kill, in two processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import ROOT, in_process
from helpers.openmmlab import toy_training

pytestmark = pytest.mark.train
pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')

DETECTION = ROOT / 'configs' / 'demo' / 'mask-rcnn_swin-nano_fpn_shapes.py'
SEGMENTATION = ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py'
LIMIT_S = 240
# One thread per process: two cores serve two processes.
ENVIRONMENT = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHON': sys.executable}


def in_a_process(*command):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


def run(*command, by=in_process.run):
    """Return the output of a tool, run in this process to save the imports, or by `by`."""
    result = by(*command)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout + result.stderr


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    out = tmp_path_factory.mktemp('shapes')
    run('tools/make_shapes_dataset.py', out, '--train', 8, '--val', 2, '--shape', 64)
    return out


def options(shapes, *more):
    return [
        '--cfg-options',
        *(f'{loader}_dataloader.dataset.data_root={shapes}' for loader in ('train', 'val', 'test')),
        *(f'{loader}_dataloader.{key}' for loader in ('train', 'val', 'test') for key in ('num_workers=0',)),
        *(f'{loader}_dataloader.persistent_workers=False' for loader in ('train', 'val', 'test')),
        'model.backbone.depths=[1,1,1,1]',
        'default_hooks.logger.interval=1',
        *more,
    ]


def detection_options(shapes, *more):
    annotations = f'{shapes}/annotations/instances_val.json'
    return options(
        shapes,
        f'val_evaluator.ann_file={annotations}',
        f'test_evaluator.ann_file={annotations}',
        'train_cfg.val_interval=100',
        'default_hooks.checkpoint.interval=1',
        *more,
    )


def load(path):
    return torch.load(path, map_location='cpu', weights_only=False)


def train_until_killed(work_dir, arguments):
    """Start a training, kill it after the first checkpoint, and return the checkpoint."""
    log = work_dir.with_suffix('.log')
    command = ['tools/train.py', DETECTION, '--work-dir', work_dir, *arguments]
    process = toy_training.start(lambda: print(in_process.run(*command)), log=log)
    marker = work_dir / 'last_checkpoint'
    deadline = time.monotonic() + LIMIT_S
    while not marker.exists() or not marker.read_text():
        ended, _ = os.waitpid(process, os.WNOHANG)
        assert not ended, log.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(process, signal.SIGKILL)
    assert toy_training.wait(process) == -signal.SIGKILL
    return Path(marker.read_text())


def test_resume_after_a_kill_and_test(tmp_path, shapes):
    work_dir = tmp_path / 'work'
    arguments = detection_options(shapes, 'train_cfg.max_epochs=40')
    before = load(train_until_killed(work_dir, arguments))
    epochs = before['meta']['epoch'] + 1
    arguments = detection_options(shapes, f'train_cfg.max_epochs={epochs}')
    output = run('tools/train.py', DETECTION, '--work-dir', work_dir, '--resume', *arguments)
    assert f'resumed epoch: {before["meta"]["epoch"]}, iter: {before["meta"]["iter"]}' in output
    assert 'eta:' in output
    after = load(work_dir / f'epoch_{epochs}.pth')
    iterations = after['meta']['iter']
    assert iterations == before['meta']['iter'] // before['meta']['epoch'] * epochs
    assert {int(state['step']) for state in after['optimizer']['state'].values()} == {iterations}
    assert after['param_schedulers'][0]['last_step'] == min(iterations, 50)

    output = run(
        'tools/test.py', DETECTION, work_dir / f'epoch_{epochs}.pth', '--work-dir', work_dir,
        '--show-dir', tmp_path / 'pictures', '--out', tmp_path / 'results.pkl', *arguments,
    )  # fmt: skip
    assert 'coco/bbox_mAP_50' in output
    assert 'coco/segm_mAP_50' in output
    assert (tmp_path / 'results.pkl').stat().st_size
    pictures = sorted(path.name for path in (tmp_path / 'pictures').glob('*.png'))
    assert pictures == ['000000.png', '000001.png']
    drawn, metrics = output.index(f'2 pictures in {tmp_path / "pictures"}'), output.rindex('\ncoco/bbox_mAP_50')
    assert drawn < metrics


def test_segmentation_trains_tests_and_draws(tmp_path, shapes):
    arguments = options(
        shapes, 'train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2'
    )
    output = run('tools/train.py', SEGMENTATION, '--work-dir', tmp_path / 'work', *arguments)
    assert 'mIoU' in output
    assert list(tmp_path.glob('work/*/curves.png'))
    run(
        'tools/test.py', SEGMENTATION, tmp_path / 'work' / 'iter_2.pth', '--work-dir', tmp_path / 'work',
        '--show-dir', tmp_path / 'pictures', '--out', tmp_path / 'labels', *arguments, by=in_a_process,
    )  # fmt: skip
    assert len(list((tmp_path / 'labels').glob('*.png'))) == 2
    assert len(list((tmp_path / 'pictures').rglob('*.png'))) == 2


def test_two_processes_stay_equal_and_use_every_parameter(tmp_path, shapes):
    (tmp_path / 'check_ranks.py').write_text(CHECK_RANKS)
    config = tmp_path / 'config.py'
    config.write_text(
        f'_base_ = {str(DETECTION)!r}\n'
        "custom_imports = dict(imports=['swin_backbone', 'check_ranks'])\n"
        "custom_hooks = [dict(type='CheckRanks')]\n"
    )
    arguments = detection_options(shapes, 'train_cfg.max_epochs=1')
    environment = {
        **ENVIRONMENT,
        'PYTHONPATH': f'{tmp_path}{os.pathsep}{ROOT}',
        'PORT': str(20000 + os.getpid() % 20000),
    }
    result = subprocess.run(
        ['bash', 'tools/dist_train.sh', str(config), '2', '--work-dir', str(tmp_path / 'work'), *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    report = json.loads((tmp_path / 'work' / 'ranks.json').read_text())
    assert report == {
        'world_size': 2,
        'largest_difference': 0.0,
        'unused': [],
        'wrapper': 'MMDistributedDataParallel',
    }


CHECK_RANKS = """
import json
from pathlib import Path

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module(name='CheckRanks')
class CheckRanks(Hook):
    def before_train(self, runner):
        self.used = set()
        for name, parameter in runner.model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self.used.add(name))

    def after_train(self, runner):
        parameters = torch.cat([parameter.detach().flatten() for parameter in runner.model.parameters()])
        gathered = [torch.empty_like(parameters) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(gathered, parameters)
        if runner.rank == 0:
            report = dict(
                world_size=len(gathered),
                largest_difference=float((gathered[0] - gathered[1]).abs().max()),
                unused=[name for name, _ in runner.model.named_parameters() if name not in self.used],
                wrapper=type(runner.model).__name__,
            )
            Path(runner.work_dir, 'ranks.json').write_text(json.dumps(report))
"""


def in_official_names(key):
    """Return the name of a weight in the official detectors."""
    key = key.replace('backbone.stages.', 'backbone.layers.').replace('attn.w_msa.', 'attn.')
    key = key.replace('ffn.layers.0.0', 'mlp.fc1').replace('ffn.layers.1', 'mlp.fc2')
    return key.replace('patch_embed.projection', 'patch_embed.proj')


def test_an_official_detector_at_another_window(tmp_path, shapes):
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope

    cfg = Config.fromfile(DETECTION)
    cfg.model.backbone.depths = [1, 1, 1, 1]
    init_default_scope('mmdet')
    weights = {in_official_names(k): v for k, v in MODELS.build(cfg.model).state_dict().items()}
    torch.save({'state_dict': weights, 'meta': {}}, tmp_path / 'official.pth')
    arguments = detection_options(shapes, 'model.backbone.window_size=12')
    output = run('tools/test.py', DETECTION, tmp_path / 'official.pth', '--work-dir', tmp_path, *arguments)
    assert "official.pth (microsoft/Swin-Transformer, prefix 'backbone.'): " in output
    assert '4 of them resized (bias tables from window 7x7 to 12x12), 0 ignored, 0 missing' in output
    assert 'coco/bbox_mAP_50' in output
