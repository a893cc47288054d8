"""Files with foreign names are neither read, replaced nor removed."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers.openmmlab.toy_training import config, train

from swin_backbone.openmmlab.checkpointing.latest import newest_whole_checkpoint

BEST = dict(default_hooks__checkpoint__save_best='score', default_hooks__checkpoint__rule='greater')


@pytest.fixture(scope='module')
def one_epoch(tmp_path_factory):
    """Return the folder of a training of an epoch."""
    folder = tmp_path_factory.mktemp('trained') / 'work'
    train(config(folder, epochs=1))
    return folder


@pytest.fixture
def work(one_epoch, tmp_path):
    shutil.copytree(one_epoch, tmp_path / 'work')
    (tmp_path / 'notes.md').write_text('precious')
    for name in ('epoch_notes.pth', 'notes.md', 'best.pth', 'best_notes.pth', '.partial-mine.pth', 'notes.pth'):
        (tmp_path / 'work' / name).write_text('precious')
    return tmp_path / 'work'


def all_precious(work):
    names = [work / name for name in os.listdir(work)] + [work.parent / 'notes.md']
    kept = [path for path in names if path.is_file() and not path.is_symlink() and path.read_bytes() == b'precious']
    return len(kept) == 7


def change(work, name='epoch_1.pth', **info):
    saved = torch.load(work / name, weights_only=False)
    saved['message_hub']['runtime_info'].update(info)
    saved['message_hub']['resumed_keys'].update(dict.fromkeys(info, True))
    torch.save(saved, work / name)


@pytest.mark.parametrize(
    'kept',
    [['../../notes', '../notes', 'notes', 1], pytest.param([None, 1.5, '1_iter_notes', ''], marks=pytest.mark.slow)],
)
def test_only_own_names_are_kept(work, record_fault, kept):
    change(work, keep_ckpt_ids=kept)
    train(config(work, epochs=2, resume=True))
    assert all_precious(work)
    assert (work / 'epoch_2.pth').is_file()
    record_fault('foreign_names')


@pytest.mark.parametrize('best', ['{parent}/notes.md', pytest.param('{work}/best_notes.pth', marks=pytest.mark.slow)])
def test_only_an_own_best_checkpoint_is_removed(work, record_fault, best):
    change(work, best_ckpt=best.format(work=work, parent=work.parent), best_score=0.0)
    train(config(work, epochs=2, resume=True, val=1, val_evaluator=dict(type='Scores', scores=[1]), **BEST))
    assert all_precious(work)
    assert (work / 'best_score_epoch_2.pth').is_file()
    record_fault('foreign_names')


def test_links_are_not_followed(work, record_fault):
    precious = work.parent / 'notes.md'
    links = ('.partial-epoch_2.pth', '.partial-last_checkpoint', '.partial-best_score_epoch_2.pth', 'epoch_2.pth',
             'best_score_epoch_1.pth', 'best_score_epoch_2.pth', '.partial-epoch_7.pth')  # fmt: skip
    for name in links:
        (work / name).symlink_to(precious)
    change(work, best_ckpt=str(work / 'best_score_epoch_1.pth'), best_score=0.0, keep_ckpt_ids=[1])
    train(config(work, epochs=2, resume=True, val=1, val_evaluator=dict(type='Scores', scores=[1]), **BEST))
    assert all_precious(work)
    assert (work / 'best_score_epoch_1.pth').is_symlink()
    assert not (work / 'epoch_2.pth').is_symlink()
    record_fault('foreign_names', len(links))


def test_a_checkpoint_to_remove_that_is_a_link_stays(work, record_fault):
    elsewhere = work.parent / 'epoch_1.pth'
    shutil.move(work / 'epoch_1.pth', elsewhere)
    train(config(work, epochs=2, load_from=str(elsewhere), resume=True))
    assert elsewhere.is_file()
    record_fault('foreign_names')


def newest(folder):
    path = newest_whole_checkpoint(str(folder), str(folder), 'epoch_{}.pth', 8)
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
    from swin_backbone.openmmlab.errors import TrainingStopped

    (work / 'epoch_2.pth').mkdir()
    with pytest.raises(
        TrainingStopped, match=r'epoch_2\.pth cannot be written \(Is a directory\)\. The last whole .*epoch_1\.pth'
    ):
        train(config(work, epochs=2, resume=True))
    assert newest(work) == 'epoch_1.pth'
    record_fault('foreign_names')
