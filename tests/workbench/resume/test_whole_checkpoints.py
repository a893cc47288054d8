"""A whole checkpoint exists at every moment: under kill -9, on a full disk, in a read-only folder."""

import errno
import fcntl
import os
import shutil
import signal
from pathlib import Path

import pytest
from helpers.openmmlab.toy_training import config, run, start, train, train_and_say, wait

from swin_backbone.whole_files import write_whole, write_whole_by
from swin_backbone.workbench.resume.checkpoint_hook import find_checkpoint_hook
from swin_backbone.workbench.resume.latest import find_newest_checkpoint


def newest(folder):
    return find_newest_checkpoint(str(folder), str(folder), 'epoch_{}.pth')


def kill_at(countdown):
    """Kill the process at a step of the write. The data reach the disk in two halves."""
    left = [countdown]

    def step(function):
        def call(*args, **kwargs):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return function(*args, **kwargs)

        return call

    class InHalves:
        def __init__(self, file):
            self.file = file
            self.__enter__, self.fileno, self.flush = (lambda: self), file.fileno, file.flush

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            step(self.file.write)(data[len(data) // 2 :])

    open_file = Path.open
    Path.open = lambda path, mode='r', **more: (
        InHalves(step(open_file)(path, mode)) if mode == 'wb' else open_file(path, mode, **more)
    )
    os.fsync, os.remove, Path.replace = step(os.fsync), step(os.remove), step(Path.replace)


def save_and_be_killed_at_each_step(folder):
    """Save a second checkpoint, killed at every step in turn. The first or the second checkpoint must be found."""
    runner = train(config(folder / 'work', epochs=1))
    hook = find_checkpoint_hook(runner)
    shutil.copytree(folder / 'work', folder / 'before')
    results = []

    def save():
        kill_at(len(results))
        hook._save_checkpoint_with_step(runner, 2, dict(epoch=2, iter=16))

    code = -signal.SIGKILL
    while code == -signal.SIGKILL:
        shutil.rmtree(folder / 'work')
        shutil.copytree(folder / 'before', folder / 'work')
        code = wait(start(save))
        results.append(Path(newest(folder / 'work')).name)
    assert code == 0
    assert [path.name for path in (folder / 'work').glob('*.pth')] == ['epoch_2.pth']
    (folder / 'found').write_text(' '.join(results))


def test_killed_at_each_step_of_saving(tmp_path, record_fault):
    log = tmp_path / 'log'
    assert wait(start(save_and_be_killed_at_each_step, tmp_path, log=log)) == 0, log.read_text()[-3000:]
    # Steps: open, second half, fsync, rename, fsync of the folder. Then last_checkpoint names the new checkpoint, and
    # the old checkpoint is removed.
    assert (tmp_path / 'found').read_text().split() == ['epoch_1.pth'] * 5 + ['epoch_2.pth'] * 2
    record_fault('kills', 6)


def test_on_a_full_disk_training_stops_with_a_sentence(tmp_path, record_fault):
    """A limit of file sizes stands for a full disk, and needs no mount."""
    folder, log = tmp_path / 'work', tmp_path / 'log'
    cfg = config(folder, epochs=3, hooks=[dict(type='LimitFiles', after=1)])
    assert wait(start(train_and_say, cfg, log=log)) not in (0, None)
    message = log.read_text()
    assert f'(File too large). The last whole checkpoint is {folder}/epoch_1.pth; --resume goes on' in message
    assert 'Traceback' not in message
    assert Path(newest(folder)).name == 'epoch_1.pth'
    assert list(folder.glob('.partial-*')) == []
    assert run(config(folder, epochs=2, resume=True), log=log) == 0
    assert Path(newest(folder)).name == 'epoch_2.pth'
    record_fault('full_disks')


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / 'file'
    path.write_bytes(b'before')

    def fsync(handle):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', fsync)
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'"):
        write_whole(path, b'after')
    with pytest.raises(ZeroDivisionError):
        write_whole_by(path, lambda partial: partial.write_bytes(b'after') // 0)
    assert path.read_bytes() == b'before'
    assert os.listdir(tmp_path) == ['file']


def test_by_the_rules_of_windows(tmp_path, monkeypatch):
    """Windows opens no folder, and flushes no file that is open for reading."""
    open_file, fsync = os.open, os.fsync

    def open_no_folder(path, *settings, **more):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, 'Permission denied', str(path))
        return open_file(path, *settings, **more)

    def flush_what_can_be_written(handle):
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, 'Bad file descriptor')
        fsync(handle)

    monkeypatch.setattr(os, 'open', open_no_folder)
    monkeypatch.setattr(os, 'fsync', flush_what_can_be_written)
    for data in (b'before', b'after'):
        write_whole(tmp_path / 'folder' / 'file', data)
        assert (tmp_path / 'folder' / 'file').read_bytes() == data


def test_a_best_checkpoint_is_removed_once_there_is_a_better_one(tmp_path):
    def best(folder):
        return [path.name for path in folder.glob('best_*.pth')]

    def settings(scores):
        best = dict(default_hooks__checkpoint__save_best='score', default_hooks__checkpoint__rule='greater')
        return dict(val=1, val_evaluator=dict(type='Scores', scores=scores), **best)

    first, copy, log = tmp_path / 'first', tmp_path / 'copy', tmp_path / 'log'
    assert run(config(first, epochs=2, **settings([1, 2])), log=log) == 0, log.read_text()[-3000:]
    assert best(first) == ['best_score_epoch_2.pth']
    shutil.copytree(first, copy)
    resumed = config(copy, epochs=3, resume=True, **settings([3]))
    assert run(resumed, log=log) == 0, log.read_text()[-3000:]
    assert best(copy) == ['best_score_epoch_3.pth']
    assert best(first) == ['best_score_epoch_2.pth']  # a file in the old folder stays
