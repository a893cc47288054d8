"""Messages and exit codes of the tools on a full disk and after signals."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from helpers import ROOT

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
