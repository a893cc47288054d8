"""Messages and exit codes of the tools on a full disk and after signals."""

import os
import signal
import subprocess
import sys

import pytest
from helpers import ROOT

ENVIRONMENT = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
LIMIT_S = 300


@pytest.mark.slow
def test_a_full_disk_is_a_sentence(record_fault):
    with open('/dev/full', 'w') as full:
        command = [sys.executable, '-m', 'swin_backbone', 'info']
        result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, text=True, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert result.stderr.endswith('cannot write its output (No space left on device)\n')
    assert 'Traceback' not in result.stderr
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
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(1)
        died_of = os.WTERMSIG(os.waitpid(worker, 0)[1])
        print(died_of, (folder / 'model.onnx').exists(), flush=True)
        time.sleep(300)

run(main)
"""


def test_a_signal_leaves_nothing_half_written(tmp_path, record_fault):
    """A signal to a worker process ends the worker alone."""
    number = signal.SIGTERM
    command = [sys.executable, '-c', WRITER, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
    assert process.stdout.readline() == f'{number.value} True\n'
    process.send_signal(number)
    assert process.wait(LIMIT_S) == 128 + number
    assert list(tmp_path.iterdir()) == []
    record_fault('ended_tools')
