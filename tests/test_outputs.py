"""The output files of a command: no file of the user, no input, no device, under any name."""

import os
from pathlib import Path

import pytest

from swin_backbone.outputs import RESULTS_MARK, check_outputs, claim_folder, mark_folder
from swin_backbone.whole_files import PARTIAL, write_whole


def test_a_file_that_exists_needs_overwrite(record_fault, tmp_path):
    mine = tmp_path / 'mine'
    check_outputs(None, mine)
    mine.touch()
    (tmp_path / 'link').symlink_to(mine)
    (tmp_path / 'dangling').symlink_to(tmp_path / 'absent')
    for path in (mine, tmp_path / 'link', tmp_path / 'dangling'):
        with pytest.raises(FileExistsError, match=f'{path} is there already: .* --overwrite'):
            check_outputs(tmp_path / 'new', path)
        check_outputs(path, overwrite=True)
        record_fault('outputs')
    write_whole(tmp_path / 'link', b'new')
    assert (mine.read_bytes(), (tmp_path / 'link').is_symlink()) == (b'', False)


@pytest.mark.parametrize('overwrite', [False, True])
def test_an_input_is_no_output_under_any_name(record_fault, tmp_path, overwrite):
    inner = tmp_path / 'inner'
    source = inner / 'source'
    inner.mkdir()
    source.touch()
    os.link(source, inner / 'hard')
    (inner / 'soft').symlink_to(source)
    (tmp_path / 'aside').symlink_to(inner)
    names = [source, inner / 'hard', inner / 'soft', tmp_path / 'aside' / 'source', inner / '..' / 'inner' / 'source']
    for name in names:
        for inputs in ([source], [inner / 'soft', 'https://example.org/a.pth', 'a\0b']):
            with pytest.raises(FileExistsError, match='is read here'):
                check_outputs(name, inputs=inputs, overwrite=overwrite)
            record_fault('outputs')


@pytest.mark.parametrize('overwrite', [False, True])
def test_folders_pipes_and_devices_stay(record_fault, tmp_path, overwrite):
    (tmp_path / 'folder').mkdir()
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path / 'folder', tmp_path / 'pipe', Path('/dev/null')):
        with pytest.raises(FileExistsError, match=f'{path} is there already, and is no regular file'):
            check_outputs(path, overwrite=overwrite)
        record_fault('outputs')


def test_a_folder_of_results_has_nothing_of_the_user(record_fault, tmp_path):
    new, mine = tmp_path / 'new', tmp_path / 'mine'
    claim_folder(new)
    (new / f'{PARTIAL}x').mkdir()  # of a test that was killed, or of another rank
    claim_folder(new)
    (new / 'a.png').touch()
    mine.mkdir()
    (mine / 'a.png').touch()
    words = 'has files that are no results, as .*/mine/a.png: write to a new folder'
    cases = ((new, False, f'{new}/a.png is there already: .* --overwrite'), (mine, False, words), (mine, True, words))
    for folder, overwrite, message in cases:
        with pytest.raises(FileExistsError, match=message):
            claim_folder(folder, overwrite)
        record_fault('outputs')
    claim_folder(new, overwrite=True)
    mark_folder(new)
    assert (new / RESULTS_MARK).exists() > (mine / RESULTS_MARK).exists()


@pytest.mark.parametrize('name', ['x' * 251 + '.jpg', '图' * 83 + '.png', '.' + 'x' * 254])
def test_names_as_long_as_a_folder_takes(name, tmp_path):
    """Names of temporary files must not be longer."""
    write_whole(tmp_path / name, b'data')
    assert [path.name for path in tmp_path.iterdir()] == [name]
