"""tools/train.py and tools/test.py on made pictures: to the end, after a kill or a signal, in two processes."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import in_process
from helpers.in_process import ROOT
from helpers.openmmlab.own_data import detection, make_own_data, segmentation
from helpers.openmmlab.random_models import save_random_model
from helpers.openmmlab.toy_training import call_in_ranks, differing, start, wait
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from swin_backbone.checkpoints import read_checkpoint

pytestmark = pytest.mark.train

LIMIT_S = 240


def run(*command):
    """Return the output of a tool."""
    result = in_process.run_well(*command)
    return result.stdout + result.stderr


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
def test_a_kill_and_a_signal_change_no_bit(tmp_path, own, record_fault):
    """With two workers, random flips and drop path."""
    more = ['train_dataloader.num_workers=2', 'train_dataloader.batch_size=1', 'model.backbone.drop_path_rate=0.3']
    words = detection(own, *more, 'train_cfg.max_epochs=8')
    whole, stopped = tmp_path / 'whole', tmp_path / 'stopped'
    run('tools/train.py', *words, '--work-dir', whole)
    assert stop_training(signal.SIGKILL, stopped, *words) == -signal.SIGKILL
    assert stop_training(signal.SIGTERM, stopped, *words, '--resume') == 75
    run('tools/train.py', *words, '--work-dir', stopped, '--resume')
    assert differing(whole / 'epoch_8.pth', stopped / 'epoch_8.pth') == []
    record_fault('resumes')


def test_a_detector_trains_tests_and_draws(tmp_path, own):
    (config, *options), work = detection(own), tmp_path / 'work'
    trained = run('tools/train.py', config, *options, '--work-dir', work, '--compile')
    outputs = ['--show-dir', tmp_path / 'pictures', '--out', tmp_path / 'results.pkl']
    tested = run('tools/test.py', config, work / 'epoch_1.pth', *options, '--work-dir', work, *outputs, '--compile')
    flipped = run('tools/test.py', config, work / 'epoch_1.pth', *options, '--work-dir', work, '--tta')
    for output in (trained, tested, flipped):
        assert 'coco/bbox_mAP_50' in output
        assert (output is flipped) != ('--compile has no effect: on a CPU' in output)
        assert 'coco/segm_mAP_50' in output
    assert (tmp_path / 'results.pkl').stat().st_size
    assert read_checkpoint(str(work / 'epoch_1.pth'))['meta']['category_ids'] == [3, 7]  # of the user's JSON
    assert sorted(path.name for path in (tmp_path / 'pictures').glob('*.png')) == ['0.png', '1.png']
    drawn, metrics = tested.index(f'2 pictures in {tmp_path / "pictures"}'), tested.rindex('\ncoco/bbox_mAP_50')
    assert drawn < metrics


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


def test_two_processes_stay_equal_and_use_every_parameter(tmp_path, own):
    config, log = tmp_path / 'config.py', tmp_path / 'log'
    base, *options = detection(own)
    config.write_text(f"_base_ = {str(base)!r}\ncustom_hooks = [dict(type='CheckRanks')]\n")
    command = ['tools/train.py', config, *options, '--launcher', 'pytorch', '--work-dir', tmp_path / 'work']
    assert call_in_ranks(run_and_exit, *command, log=log) == [0, 0], Path(f'{log}0').read_text()[-4000:]
    assert json.loads((tmp_path / 'work' / 'ranks.json').read_text()) == {
        'world_size': 2,
        'largest_difference': 0.0,
        'unused': [],
        'wrapper': 'MMDistributedDataParallel',
    }


@pytest.mark.parametrize('debug', [[], ['--debug']])
def test_a_training_that_a_signal_stops_exits_with_75(tmp_path, own, debug):
    """Without a traceback; in Python it is an error, see test_guards.py."""
    base, *options = detection(own)
    (tmp_path / 'config.py').write_text(
        f"_base_ = {str(base)!r}\ncustom_hooks = [dict(type='SendSignal', number=2, after=[1])]\n"
    )
    words = [tmp_path / 'config.py', *options, 'train_dataloader.batch_size=1', '--work-dir', tmp_path / 'work', *debug]
    result = in_process.run('tools/train.py', *words)
    assert result.returncode == 75
    assert 'Traceback' not in result.stderr
    assert (tmp_path / 'work' / 'epoch_0_iter_1.pth').exists()


def test_two_processes_test_into_one_folder(tmp_path):
    """Of three pictures, the sampler gives one to both processes."""
    own = make_own_data(tmp_path / 'own')
    for folder in ('images', 'labels'):
        shutil.copy(own / folder / 'val' / '1.png', own / folder / 'val' / '2.png')
    (config, *options), log, out = segmentation(own), tmp_path / 'log', tmp_path / 'out'
    cfg = Config.fromfile(config)
    cfg.model.backbone.depths = [1, 1, 1, 1]
    cfg.model.decode_head.num_classes = cfg.model.auxiliary_head.num_classes = 2
    command = ['tools/test.py', config, save_random_model(cfg, tmp_path), *options, '--work-dir', tmp_path / 'work']
    ended = call_in_ranks(run_and_exit, *command, '--launcher', 'pytorch', '--out', out, log=log)
    assert ended == [0, 0], Path(f'{log}0').read_text()[-4000:]
    assert [Path(f'{log}{rank}').read_text().count('\nmIoU: ') for rank in range(2)] == [1, 0]
    assert sorted(path.name for path in out.glob('*')) == ['.swin_backbone.results', '0.png', '1.png', '2.png']


@pytest.mark.parametrize(('tool', 'words'), [('train', 'CONFIG'), ('test', 'CONFIG CKPT')])
def test_a_script_starts_all_processes_by_torchrun(tool, words):
    command = ['bash', f'tools/dist_{tool}.sh', *words.split(), '2', '--amp']
    variables = {**os.environ, 'PYTHON': 'echo'}
    printed = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True).stdout
    assert printed.startswith('-m torch.distributed.run --nnodes 1 ')
    assert printed.endswith(f' --nproc-per-node 2 tools/{tool}.py {words} --launcher pytorch --amp\n')
