"""The output files of a command: no file of the user, no input, no file twice, and the same command again."""

import os
import subprocess
from pathlib import Path

import pytest

from swin_backbone.outputs import RECORD, Outputs, claim

MINE = b'the work of a year'


def assert_refused(record_fault, write, path, *words, content=MINE):
    """Check that `write` does not change `path` and leaves no further files."""
    before = {*path.parent.iterdir(), path.parent / RECORD}
    with pytest.raises(FileExistsError) as caught:
        write()
    for word in (str(path), *words):
        assert word in str(caught.value)
    assert path.read_bytes() == content
    assert {*path.parent.iterdir(), path.parent / RECORD} == before
    record_fault('outputs')


@pytest.fixture
def mine(tmp_path):
    (tmp_path / 'mine').write_bytes(MINE)
    return tmp_path / 'mine'


def test_what_a_command_wrote_it_writes_again(tmp_path):
    """Also in a moved folder, and after an interrupted write. The record has a line before the file is renamed."""
    folder, moved = tmp_path / 'folder', tmp_path / 'moved'
    for data in (b'1', b'22', b'22', b'1', b'333'):
        Outputs(folder).write(folder / 'inner' / 'a', data)
        assert (folder / 'inner' / 'a').read_bytes() == data
    assert sorted(path.name for path in folder.rglob('*')) == sorted([RECORD, 'a', 'inner'])
    folder.rename(moved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, 'replace', lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Outputs(moved).write(moved / 'inner' / 'a', b'new')
    assert (moved / 'inner' / 'a').read_bytes() == b'333'
    Outputs(moved).write(moved / 'inner' / 'a', b'newer')


def test_the_record_is_read_by_sha256sum_and_does_not_grow(tmp_path):
    names = ['a', 'b c', 'line\nbreak', 'back\\slash', '\\n', os.fsdecode(b'caf\xe9')]
    sizes = []
    for turn in range(6):
        outputs = Outputs(tmp_path)
        for name in names:
            outputs.write(tmp_path / name, f'{turn} {name!r}'.encode())
        sizes.append((tmp_path / RECORD).stat().st_size)
    assert sizes[3:] == [sizes[3]] * 3
    Outputs(tmp_path).write(tmp_path / 'a', b'')
    lines = {line.partition(b'  ')[2]: line for line in (tmp_path / RECORD).read_bytes().split(b'\n')[:-1]}
    (tmp_path / 'last').write_bytes(b''.join(line + b'\n' for line in lines.values()))
    subprocess.run(['sha256sum', '--check', '--quiet', 'last'], cwd=tmp_path, check=True)


def test_files_of_the_user_and_changed_outputs(record_fault, mine):
    for write in (lambda: Outputs(mine.parent).write(mine, b''), lambda: claim(mine)):
        assert_refused(record_fault, write, mine, 'is there already', '--overwrite')
    Outputs(mine.parent, overwrite=True).write(mine, b'new')
    assert mine.read_bytes() == b'new'
    Outputs(mine.parent).write(mine, b'newer')
    mine.write_bytes(MINE)
    assert_refused(record_fault, lambda: Outputs(mine.parent).write(mine, b''), mine, 'changed since')
    moved = mine.parent / 'moved'
    Outputs(mine.parent).write(mine.parent / 'a', MINE)
    (mine.parent / 'a').rename(moved)
    assert_refused(record_fault, lambda: Outputs(mine.parent).write(moved, b''), moved)


@pytest.mark.parametrize('overwrite', [False, True])
def test_an_input_is_no_output_under_any_name(record_fault, tmp_path, overwrite):
    inner = tmp_path / 'inner'
    source = inner / 'source'
    Outputs(inner).write(source, MINE)  # a file of the same command, too
    os.link(source, inner / 'hard')
    (inner / 'soft').symlink_to(source)
    (tmp_path / 'aside').symlink_to(inner)
    names = [source, inner / 'hard', inner / 'soft', tmp_path / 'aside' / 'source', inner / '..' / 'inner' / 'source']
    for name in names:
        outputs = Outputs(name.parent, [source], overwrite)
        assert_refused(record_fault, lambda: outputs.write(name, b''), name, 'is read here')  # noqa: B023
    outputs = Outputs(inner, [inner / 'soft', 'https://example.org/a.pth', 'a\0b'], overwrite)
    assert_refused(record_fault, lambda: outputs.write(source, b''), source, 'is read here')
    assert (inner / 'soft').is_symlink()


def test_links_are_not_written_through(record_fault, mine):
    link = mine.parent / 'link'
    link.symlink_to(mine)
    assert_refused(record_fault, lambda: Outputs(mine.parent).write(link, b''), link)
    Outputs(mine.parent, overwrite=True).write(link, b'new')
    assert not link.is_symlink()
    assert mine.read_bytes() == MINE
    dangling = mine.parent / 'dangling'
    dangling.symlink_to(mine.parent / 'absent')
    with pytest.raises(FileExistsError, match='dangling is there already'):
        Outputs(mine.parent).write(dangling, b'')
    record_fault('outputs')


@pytest.mark.parametrize('overwrite', [False, True])
def test_folders_pipes_and_devices_stay(record_fault, tmp_path, overwrite):
    (tmp_path / 'folder').mkdir()
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path / 'folder', tmp_path / 'pipe', Path('/dev/null')):
        before = path.stat().st_mode
        with pytest.raises(FileExistsError, match=f'{path} is there already, and is no regular file'):
            claim(path, overwrite=overwrite)
        assert path.stat().st_mode == before
        record_fault('outputs')


def test_two_inputs_of_one_command_share_no_output(record_fault, tmp_path):
    (tmp_path / 'x').symlink_to(tmp_path)
    for name, other in (('a', 'a'), ('b', 'x/b')):
        outputs = Outputs(tmp_path)
        outputs.write(tmp_path / name, MINE)
        assert_refused(record_fault, lambda: outputs.write(tmp_path / other, b'2'), tmp_path / other)  # noqa: B023


def test_a_damaged_record_protects_all_files(record_fault, mine):
    record = mine.parent / RECORD
    record.symlink_to(mine)
    assert_refused(record_fault, lambda: Outputs(mine.parent), mine.parent / RECORD, 'no regular file')
    record.unlink()
    for text in (b'\xff' * 100, b'  mine', b'abc  mine\nhalf a li'):
        record.write_bytes(text)
        assert_refused(record_fault, lambda: Outputs(mine.parent).write(mine, b''), mine)
    Outputs(mine.parent).write(mine.parent / 'new', b'1')
    Outputs(mine.parent).write(mine.parent / 'new', b'2')


@pytest.mark.parametrize('name', ['x' * 251 + '.jpg', '图' * 83 + '.png', '.' + 'x' * 254])
def test_names_as_long_as_a_folder_takes(name, tmp_path):
    """Names of temporary files must not be longer."""
    Outputs(tmp_path).write(tmp_path / name, b'data')
    assert {path.name for path in tmp_path.iterdir()} == {name, RECORD}
