"""Two trainings cannot share a working folder. The lock ends with the process."""

import contextlib
import os
import re
import signal
import time

import pytest
from helpers.openmmlab.toy_training import config, start, wait

from swin_backbone.outputs import FolderInUse, lock_folder
from swin_backbone.whole_files import make_temporary_name
from swin_backbone.workbench.job import Job, open_training


def hold(folder, workers=0):
    with lock_folder(folder, 'trains in', 'training'):
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
    training = Job(config(tmp_path, epochs=1))
    for _ in range(2):
        with pytest.raises(FolderInUse, match=who), open_training(training):
            pass
    training.is_main_process = False  # the first process of the run holds the lock
    with open_training(training):
        pass
    training.is_main_process = True
    (tmp_path / '.training.txt').unlink()
    with pytest.raises(FolderInUse, match=r'^another process trains in'), open_training(training):
        pass
    wait_killed(holder)
    record_fault('locks', 4)


def wait_killed(process):
    os.kill(process, signal.SIGKILL)
    wait(process)


def test_a_kill_leaves_no_lock(tmp_path, holder, record_fault):
    """Workers live for some seconds more, and hold no lock."""
    wait_killed(holder)
    for _ in range(2):
        with open_training(Job(config(tmp_path, epochs=1))):
            assert (tmp_path / '.training.txt').read_text().startswith(f'process {os.getpid()} on ')
    record_fault('locks')


def test_the_next_training_removes_the_checkpoint_that_a_kill_cut_off(tmp_path):
    """It took the place of a checkpoint on the disk for a day. Other half-written files may be of other processes."""
    names = ('epoch_1.pth', 'iter_20.pth', 'epoch_2_iter_25.pth', 'best_bbox_mAP_epoch_3.pth')
    others = ('mine.pth', 'epoch_1.png', 'epoch_1-timm.pth')
    for name in (*names, *others):
        make_temporary_name(tmp_path / name).touch()
    (tmp_path / 'epoch_1.pth').touch()
    training = Job(config(tmp_path, epochs=1))
    for is_main_process, left in ((False, {*names, *others}), (True, {*others})):
        training.is_main_process = is_main_process
        with open_training(training):
            pass
        assert {path.name.split('-', 2)[2] for path in tmp_path.glob('.partial-*')} == left
    assert (tmp_path / 'epoch_1.pth').exists()
