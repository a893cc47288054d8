"""tools/train.py and tools/test.py on made pictures: to the end, after a kill or a signal, in two processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import in_process
from helpers.in_process import ROOT
from helpers.openmmlab.toy_training import call_in_ranks, differing, start, wait
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

pytestmark = pytest.mark.train
pytest.importorskip('mmdet', reason='mmdet is not installed')
pytest.importorskip('mmseg', reason='mmseg is not installed')

DETECTION = ROOT / 'configs' / 'demo' / 'mask-rcnn_swin-nano_fpn_shapes.py'
SEGMENTATION = ROOT / 'configs' / 'demo' / 'swin-nano_upernet_shapes.py'
LIMIT_S = 240


def run(*command):
    """Return the output of a tool."""
    result = in_process.run_well(*command)
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


def run_and_exit(*command):
    """Run a tool, and exit with its status."""
    result = in_process.run(*command)
    print(result.stdout, result.stderr)
    sys.exit(result.returncode)


def stop_training(number, work_dir, *command):
    """Send a signal to a training some time after its first new checkpoint, and return the exit code."""
    log, marker = work_dir.with_suffix('.log'), work_dir / 'last_checkpoint'
    before = marker.read_text() if marker.exists() else ''
    process = start(run_and_exit, 'tools/train.py', *command, '--work-dir', work_dir, log=log)
    deadline = time.monotonic() + LIMIT_S
    while not marker.exists() or marker.read_text() in ('', before):
        ended, _ = os.waitpid(process, os.WNOHANG)
        assert not ended, log.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(random.Random(work_dir.name).uniform(0, 0.5))
    os.kill(process, number)
    return wait(process)


@pytest.mark.slow
def test_a_kill_and_a_signal_change_no_bit(tmp_path, shapes, record_fault):
    """With two workers, random flips and drop path."""
    more = ['train_dataloader.num_workers=2', 'train_dataloader.batch_size=2', 'model.backbone.drop_path_rate=0.3']
    words = [DETECTION, *detection_options(shapes, *more, 'train_cfg.max_epochs=5')]
    whole, stopped = tmp_path / 'whole', tmp_path / 'stopped'
    run('tools/train.py', *words, '--work-dir', whole)
    assert stop_training(signal.SIGKILL, stopped, *words) == -signal.SIGKILL
    assert stop_training(signal.SIGTERM, stopped, *words, '--resume') == 75
    run('tools/train.py', *words, '--work-dir', stopped, '--resume')
    assert differing(whole / 'epoch_5.pth', stopped / 'epoch_5.pth') == []
    record_fault('resumes')


def test_a_detector_trains_tests_and_draws(tmp_path, shapes):
    arguments = detection_options(shapes, 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1')
    trained = run('tools/train.py', DETECTION, '--work-dir', tmp_path / 'work', *arguments)
    tested = run(
        'tools/test.py', DETECTION, tmp_path / 'work' / 'epoch_1.pth', '--work-dir', tmp_path / 'work',
        '--show-dir', tmp_path / 'pictures', '--out', tmp_path / 'results.pkl', *arguments,
    )  # fmt: skip
    for output in (trained, tested):
        assert 'coco/bbox_mAP_50' in output
        assert 'coco/segm_mAP_50' in output
    assert (tmp_path / 'results.pkl').stat().st_size
    pictures = sorted(path.name for path in (tmp_path / 'pictures').glob('*.png'))
    assert pictures == ['000000.png', '000001.png']
    drawn, metrics = tested.index(f'2 pictures in {tmp_path / "pictures"}'), tested.rindex('\ncoco/bbox_mAP_50')
    assert drawn < metrics


def test_a_segmentor_trains_tests_and_draws(tmp_path, shapes):
    arguments = options(
        shapes, 'train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2'
    )
    output = run('tools/train.py', SEGMENTATION, '--work-dir', tmp_path / 'work', *arguments)
    assert 'mIoU' in output
    assert list(tmp_path.glob('work/*/curves.png'))
    run(
        'tools/test.py', SEGMENTATION, tmp_path / 'work' / 'iter_2.pth', '--work-dir', tmp_path / 'work',
        '--show-dir', tmp_path / 'pictures', '--out', tmp_path / 'labels', *arguments,
    )  # fmt: skip
    assert len(list((tmp_path / 'labels').glob('*.png'))) == 2
    assert len(list((tmp_path / 'pictures').rglob('*.png'))) == 2


@HOOKS.register_module()
class CheckRanks(Hook):
    """Compare the parameters of all ranks, and list the unused parameters."""

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


def test_two_processes_stay_equal_and_use_every_parameter(tmp_path, shapes):
    config, log = tmp_path / 'config.py', tmp_path / 'log'
    config.write_text(f"_base_ = {str(DETECTION)!r}\ncustom_hooks = [dict(type='CheckRanks')]\n")
    arguments = detection_options(shapes, 'train_cfg.max_epochs=1')
    command = ['tools/train.py', config, '--launcher', 'pytorch', '--work-dir', tmp_path / 'work', *arguments]
    assert call_in_ranks(run_and_exit, *command, log=log) == [0, 0], Path(f'{log}0').read_text()[-4000:]
    assert json.loads((tmp_path / 'work' / 'ranks.json').read_text()) == {
        'world_size': 2,
        'largest_difference': 0.0,
        'unused': [],
        'wrapper': 'MMDistributedDataParallel',
    }


@pytest.mark.parametrize(('tool', 'words'), [('train', 'CONFIG'), ('test', 'CONFIG CKPT')])
def test_a_script_starts_all_processes_by_torchrun(tool, words):
    command = ['bash', f'tools/dist_{tool}.sh', *words.split(), '2', '--amp']
    variables = {**os.environ, 'PYTHON': 'echo'}
    printed = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True).stdout
    assert printed.startswith('-m torch.distributed.run --nnodes 1 ')
    assert printed.endswith(f' --nproc-per-node 2 tools/{tool}.py {words} --launcher pytorch --amp\n')
