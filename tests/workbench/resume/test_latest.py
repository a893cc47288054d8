"""The checkpoint of `--resume`, also if checkpoints are missing or damaged."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers.openmmlab.toy_training import config, run
from mmengine.logging import MMLogger

from swin_backbone.checkpoints import CheckpointError
from swin_backbone.workbench.resume.latest import find_newest_checkpoint


def save(folder, *names, last=None):
    """Write the checkpoints `names` of a training in this order, and last_checkpoint for `last`."""
    folder.mkdir(exist_ok=True)
    hub = dict(log_scalars={}, runtime_info={}, resumed_keys={})
    for second, name in enumerate(names):
        torch.save(dict(meta=dict(epoch=1, iter=8), state_dict={}, message_hub=hub, optimizer={}), folder / name)
        os.utime(folder / name, (second, second))
    if last is not None:
        (folder / 'last_checkpoint').write_text(str(folder / last))


@pytest.fixture
def log(caplog):
    """Record the messages of mmengine's logger."""
    logger = MMLogger.get_current_instance()
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def newest(folder):
    path = find_newest_checkpoint(str(folder), str(folder), 'epoch_{}.pth')
    return path and Path(path).name


def truncate(path):
    with path.open('r+b') as file:
        file.truncate(path.stat().st_size // 2)


DAMAGES = {
    'truncated': truncate,
    'empty': lambda path: path.write_bytes(b''),
    'missing': Path.unlink,
    'weights alone': lambda path: torch.save({'weight': torch.ones(1)}, path),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_checkpoint_is_skipped(tmp_path, log, record_fault, damage):
    save(tmp_path, 'epoch_1.pth', 'epoch_2.pth', 'epoch_10.pth', 'best_epoch_10.pth', last='epoch_10.pth')
    assert newest(tmp_path) == 'epoch_10.pth'
    DAMAGES[damage](tmp_path / 'epoch_10.pth')
    assert newest(tmp_path) == 'epoch_2.pth'
    *_, warning, last = log.records
    assert warning.levelname == 'WARNING'
    assert 'epoch_10.pth' in warning.getMessage()
    assert last.getMessage() == f'Resuming {tmp_path}/epoch_2.pth.'
    record_fault('damages')


def test_the_checkpoint_that_was_written_last_is_taken(tmp_path):
    """Its number may be lower than the numbers of an earlier training."""
    save(tmp_path, 'epoch_12.pth', 'epoch_2.pth', 'epoch_2_iter_19.pth', 'iter_9.pth', 'best_epoch_3.pth')
    for name in ('iter_9.pth', 'epoch_2_iter_19.pth', 'epoch_2.pth', 'epoch_12.pth'):
        assert newest(tmp_path) == name
        (tmp_path / name).unlink()


@pytest.mark.parametrize('text', [None, '\n', 'no path\0'])
def test_an_empty_last_checkpoint(tmp_path, log, text, record_fault):
    save(tmp_path, 'epoch_1.pth', 'epoch_3.pth')
    if text is not None:
        (tmp_path / 'last_checkpoint').write_text(text)
    assert newest(tmp_path) == 'epoch_3.pth'
    assert log.messages[0].startswith(f'{tmp_path}/last_checkpoint names ')
    record_fault('damages')


@pytest.mark.parametrize('keep', [False, True])
def test_a_folder_that_was_moved_or_copied(tmp_path, record_fault, keep):
    save(tmp_path / 'before', 'epoch_2.pth', 'epoch_1.pth', last='epoch_2.pth')
    (shutil.copytree if keep else shutil.move)(tmp_path / 'before', tmp_path / 'after')
    folder = str(tmp_path / 'after')
    assert find_newest_checkpoint(folder, folder, 'epoch_{}.pth') == f'{folder}/epoch_2.pth'
    record_fault('damages')


def test_a_folder_of_checkpoints_elsewhere_and_names_of_ones_own(tmp_path):
    save(tmp_path / 'work')
    save(tmp_path / 'out', 'at 3.pth', 'at 12.pth', 'epoch_x.pth')
    results = find_newest_checkpoint(str(tmp_path / 'work'), str(tmp_path / 'out'), 'at {}.pth')
    assert results == str(tmp_path / 'out' / 'at 12.pth')


def test_no_whole_checkpoint_and_no_checkpoint(tmp_path, record_fault):
    save(tmp_path)
    assert newest(tmp_path) is None
    (tmp_path / 'epoch_1.pth').write_bytes(b'')
    (tmp_path / 'epoch_2.pth').write_bytes(b'')
    os.utime(tmp_path / 'epoch_1.pth', (0, 0))
    with pytest.raises(CheckpointError, match=r'no checkpoint in .* is whole: .*epoch_2\.pth.*; .*epoch_1\.pth'):
        newest(tmp_path)
    for path in tmp_path.glob('*.pth'):
        path.unlink()
    (tmp_path / 'last_checkpoint').write_text('/gone/epoch_2.pth')
    with pytest.raises(CheckpointError, match=r'names /gone/epoch_2\.pth, and .* has no checkpoint'):
        newest(tmp_path)
    record_fault('damages', 2)


def test_a_resume_without_checkpoints_is_logged(tmp_path):
    log = tmp_path / 'log'
    assert run(config(tmp_path / 'work', epochs=1, resume=True), log=log) == 0
    assert (
        f'There is no checkpoint in {tmp_path}/work to resume: training starts from the beginning.' in log.read_text()
    )


@pytest.mark.parametrize('resume', [False, True])
def test_a_training_that_begins_anew_says_what_it_replaces(tmp_path, resume):
    log = tmp_path / 'log'
    assert run(config(tmp_path, epochs=1)) == 0
    assert run(config(tmp_path, epochs=2, resume=resume), log=log) == 0
    line = f'{tmp_path} has checkpoints of an earlier training, as epoch_1.pth. This training begins anew'
    assert (line in log.read_text()) != resume
