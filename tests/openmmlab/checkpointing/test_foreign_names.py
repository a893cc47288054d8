"""Files with foreign names are neither read, replaced nor removed."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers.openmmlab.toy_training import config, train

from swin_backbone.openmmlab.checkpointing.latest import newest_whole_checkpoint
from swin_backbone.openmmlab.errors import TrainingStopped

SCORE = dict(type='Scores', scores=[1])
BEST = dict(default_hooks__checkpoint__save_best='score', default_hooks__checkpoint__rule='greater')
NAMES = ('epoch_notes.pth', 'notes.md', 'best.pth', 'best_notes.pth', '.partial-mine.pth', 'notes.pth', 'notes/a')


@pytest.fixture(scope='module')
def one_epoch(tmp_path_factory):
    """Return the folder of a training of an epoch."""
    folder = tmp_path_factory.mktemp('trained') / 'work'
    train(config(folder, epochs=1))
    return folder


@pytest.fixture
def work(one_epoch, tmp_path):
    """Return a copy of the folder with files of the user, which every test leaves."""
    shutil.copytree(one_epoch, tmp_path / 'work')
    precious = [tmp_path / 'notes.md', *(tmp_path / 'work' / name for name in NAMES)]
    for path in precious:
        path.parent.mkdir(exist_ok=True)
        path.write_text('precious')
    yield tmp_path / 'work'
    assert all(path.read_text() == 'precious' and not path.is_symlink() for path in precious)


def resume(work, val=None, **info):
    """Resume the training for an epoch, with changed names in the checkpoint."""
    saved = torch.load(work / 'epoch_1.pth', weights_only=False)
    saved['message_hub']['runtime_info'].update(info)
    saved['message_hub']['resumed_keys'].update(dict.fromkeys(info, True))
    torch.save(saved, work / 'epoch_1.pth')
    train(config(work, epochs=2, resume=True, **(dict(val=1, val_evaluator=SCORE, **BEST) if val else {})))
    assert (work / 'epoch_2.pth').is_file()


@pytest.mark.parametrize('kept', [['../../notes', '../notes', 'notes', 1], [None, 1.5, '1_iter_notes', '']])
def test_only_own_names_are_kept(work, record_fault, kept):
    resume(work, keep_ckpt_ids=kept)
    record_fault('foreign_names')


@pytest.mark.parametrize('best', ['{work}/../notes.md', '{work}/best_notes.pth', '{work}/notes', '/'])
def test_only_an_own_best_checkpoint_is_removed(work, record_fault, best):
    resume(work, val=1, best_ckpt=best.format(work=work), best_score=0.0)
    assert (work / 'best_score_epoch_2.pth').is_file()
    record_fault('foreign_names')


def test_links_are_not_followed(work, record_fault):
    links = ('.partial-epoch_2.pth', '.partial-last_checkpoint', '.partial-best_score_epoch_2.pth', 'epoch_2.pth',
             'best_score_epoch_1.pth', 'best_score_epoch_2.pth', '.partial-epoch_7.pth')  # fmt: skip
    for name in links:
        (work / name).symlink_to(work.parent / 'notes.md')
    resume(work, val=1, best_ckpt=str(work / 'best_score_epoch_1.pth'), best_score=0.0, keep_ckpt_ids=[1])
    assert (work / 'best_score_epoch_1.pth').is_symlink()
    assert not (work / 'epoch_2.pth').is_symlink()
    record_fault('foreign_names', len(links))


def newest(folder):
    path = newest_whole_checkpoint(str(folder), str(folder), 'epoch_{}.pth')
    return path and Path(path).name


@pytest.mark.parametrize('last', ['https://127.0.0.1:9/epoch_9.pth', '{parent}/epoch_9.pth', 'notes.pth', '/'])
def test_last_checkpoint_names_a_file_in_its_folder(work, record_fault, monkeypatch, last):
    shutil.copy(work / 'epoch_1.pth', work.parent / 'epoch_9.pth')
    (work / 'last_checkpoint').write_text(last.format(parent=work.parent))
    monkeypatch.setattr('socket.create_connection', lambda *_, **__: pytest.fail('it was requested'))
    assert newest(work) == 'epoch_1.pth'
    record_fault('foreign_names')


@pytest.mark.parametrize('make', [lambda path: path.symlink_to('/dev/zero'), Path.mkdir, os.mkfifo])
def test_links_folders_and_pipes_are_ignored(work, record_fault, make):
    shutil.copy(work / 'epoch_1.pth', work / 'epoch_3.pth')
    for name, expected in (('last_checkpoint', 'epoch_3.pth'), ('epoch_3.pth', 'epoch_1.pth'), ('epoch_1.pth', None)):
        (work / name).unlink()
        make(work / name)
        assert newest(work) == expected
    record_fault('foreign_names', 3)


def test_a_folder_in_place_of_a_checkpoint(work, record_fault):
    (work / 'epoch_2.pth').mkdir()
    with pytest.raises(
        TrainingStopped, match=r'epoch_2\.pth cannot be written \(Is a directory\)\. The last whole .*epoch_1\.pth'
    ):
        resume(work)
    assert newest(work) == 'epoch_1.pth'
    record_fault('foreign_names')
