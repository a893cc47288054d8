"""Messages and exit codes of the tools on a full disk and after signals."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import ROOT, run_python
from helpers.openmmlab.toy_training import differing

from swin_backbone import SwinBackbone, convert_checkpoint
from swin_backbone.checkpoints import CheckpointError

ENVIRONMENT = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
LIMIT_S = 300


@pytest.mark.slow
@pytest.mark.parametrize('tool', ['print_config', 'flops'])
def test_a_full_disk_is_a_sentence(record_fault, tool):
    more = ['--backbone-only'] if tool == 'flops' else []
    with open('/dev/full', 'w') as full:
        command = [sys.executable, f'tools/{tool}.py', 'configs/demo/swin-nano_upernet_shapes.py', *more]
        result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, text=True, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert result.stderr.endswith(f'tools/{tool}.py: cannot write its output (No space left on device)\n')
    assert 'Traceback' not in result.stderr
    record_fault('full_disks')


@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
def test_converting_to_a_full_disk_is_a_sentence(tmp_path, record_fault, suffix):
    disk = tmp_path / 'disk'
    disk.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=100k', 'tmpfs', disk], capture_output=True).returncode:
        pytest.skip('this user cannot mount a small disk')
    try:
        torch.save(SwinBackbone(arch='nano').state_dict(), tmp_path / 'in.pth')
        with pytest.raises(CheckpointError, match=rf'out\.{suffix} cannot be written \('):
            convert_checkpoint(tmp_path / 'in.pth', disk / f'out.{suffix}', 'official')
        assert os.listdir(disk) == []
    finally:
        subprocess.run(['umount', '-l', disk], check=True)
    record_fault('full_disks')


WRITER = """
import os, signal, sys, time
from pathlib import Path

from swin_backbone.command_line import run
from swin_backbone.export.export import new_folder

def main():
    with new_folder(Path(sys.argv[1]) / 'out') as folder:
        (folder / 'model.onnx').write_text('half')
        if not (worker := os.fork()):
            os.kill(os.getpid(), getattr(signal, sys.argv[2]))
            os._exit(1)
        died_of = os.WTERMSIG(os.waitpid(worker, 0)[1])
        print(died_of, (folder / 'model.onnx').exists(), flush=True)
        time.sleep(300)

run(main)
"""


@pytest.mark.parametrize('name', ['SIGTERM', pytest.param('SIGHUP', marks=pytest.mark.slow)])
def test_a_signal_leaves_nothing_half_written(tmp_path, record_fault, name):
    """A signal to a worker process ends the worker alone."""
    number = getattr(signal, name)
    command = [sys.executable, '-c', WRITER, str(tmp_path), name]
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
    assert process.stdout.readline() == f'{number.value} True\n'
    process.send_signal(number)
    assert process.wait(LIMIT_S) == 128 + number
    assert list(tmp_path.iterdir()) == []
    record_fault('ended_tools')


def wait_for(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    out = tmp_path_factory.mktemp('shapes')
    run_python('tools/make_shapes_dataset.py', out, '--train', 8, '--val', 2, '--shape', 64)
    return out


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.parametrize('config', ['mask-rcnn_swin-nano_fpn_shapes.py', 'swin-nano_upernet_shapes.py'])
def test_a_kill_and_a_signal_change_no_bit(tmp_path, shapes, record_fault, config):
    """With a detector by epochs and a segmentor by iterations, two workers, random flips and drop path."""
    pytest.importorskip('mmdet', reason='mmdet is not installed')
    pytest.importorskip('mmseg', reason='mmseg is not installed')
    by_epoch = config.startswith('mask')
    annotations = f'{shapes}/annotations/instances_val.json'
    options = [
        '--cfg-options',
        *(f'{loader}_dataloader.dataset.data_root={shapes}' for loader in ('train', 'val', 'test')),
        'train_dataloader.num_workers=2',
        'train_dataloader.batch_size=2',
        'model.backbone.depths=[1,1,1,1]',
        'model.backbone.drop_path_rate=0.3',
        'default_hooks.checkpoint.interval=1',
        *((f'{part}_evaluator.ann_file={annotations}' for part in ('val', 'test')) if by_epoch else ()),
        *(('train_cfg.max_epochs=5',) if by_epoch else ('train_cfg.max_iters=20',)),
        'train_cfg.val_interval=100',
    ]

    def train(folder, *more):
        command = ['tools/train.py', f'configs/demo/{config}', '--work-dir', str(tmp_path / folder), *more, *options]
        with open(tmp_path / f'{folder}.log', 'a') as log:
            return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log)

    def stop(process, folder, number):
        marker = tmp_path / folder / 'last_checkpoint'
        before = marker.read_text() if marker.exists() else ''
        wait_for(lambda: process.poll() is not None or (marker.exists() and marker.read_text() != before))
        time.sleep(random.Random(config).uniform(0, 0.5))
        process.send_signal(number)
        return process.wait(LIMIT_S)

    def log(folder):
        return (tmp_path / f'{folder}.log').read_text()[-3000:]

    assert train('whole').wait(LIMIT_S) == 0, log('whole')
    assert stop(train('killed'), 'killed', signal.SIGKILL) == -signal.SIGKILL, log('killed')
    assert stop(train('killed', '--resume'), 'killed', signal.SIGTERM) == 75, log('killed')
    assert train('killed', '--resume').wait(LIMIT_S) == 0, log('killed')
    final = Path((tmp_path / 'whole' / 'last_checkpoint').read_text()).name
    assert differing(tmp_path / 'whole' / final, tmp_path / 'killed' / final) == []
    record_fault('resumes')
