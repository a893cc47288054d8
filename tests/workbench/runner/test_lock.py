"""Two trainings cannot share a working folder. The lock ends with the process."""

import contextlib
import os
import re
import signal
import time

import pytest
from helpers.openmmlab.jobs import build_runner
from helpers.openmmlab.toy_training import config, start, wait

from swin_backbone.outputs import FolderInUse
from swin_backbone.workbench.runner import build
from swin_backbone.workbench.runner.safe_runner import training_lock


def hold(folder, workers=0):
    with training_lock(str(folder)):
        for _ in range(workers):
            if os.fork() == 0:  # a worker of a data loader outlives a killed training
                time.sleep(20)
                os._exit(0)
        (folder / 'held').touch()
        time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    """Start a process that trains in a folder, with workers."""
    process = start(hold, tmp_path, 2, log=tmp_path / 'log')
    deadline = time.monotonic() + 30
    while not (tmp_path / 'held').exists():
        assert time.monotonic() < deadline, (tmp_path / 'log').read_text()
        time.sleep(0.01)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def test_a_second_training_is_told_who_trains_there(tmp_path, holder, record_fault):
    who = rf'^process {holder} on \S+, since \S+, trains in {re.escape(str(tmp_path))}'
    for _ in range(2):
        with pytest.raises(FolderInUse, match=who), training_lock(str(tmp_path)):
            pass
    with pytest.raises(FolderInUse, match=who):
        build.run_loop(build_runner(config(tmp_path, epochs=1)), 'train')
    with training_lock(str(tmp_path), is_main_process=False):  # another process holds the lock
        pass
    (tmp_path / '.training.txt').unlink()
    with pytest.raises(FolderInUse, match=r'^another process trains in'), training_lock(str(tmp_path)):
        pass
    wait_killed(holder)
    record_fault('locks', 4)


def wait_killed(process):
    os.kill(process, signal.SIGKILL)
    wait(process)


def test_a_kill_leaves_no_lock(tmp_path, holder, record_fault):
    """Workers live for some seconds more, and hold no lock."""
    wait_killed(holder)
    with training_lock(str(tmp_path)):
        assert (tmp_path / '.training.txt').read_text().startswith(f'process {os.getpid()} on ')
    with training_lock(str(tmp_path)):
        pass
    record_fault('locks')
