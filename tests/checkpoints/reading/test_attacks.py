"""Files made to do harm: each is one sentence, and takes no more memory than a file of its size may."""

import re

import pytest
import safetensors.torch
import torch
from helpers.checkpoints.attacks import ATTACKS
from helpers.checkpoints.reading import read_in_process


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp('attacks')
    safetensors.torch.save_file({'a': torch.ones(1)}, folder / 'warm.safetensors')  # imports what reading imports
    torch.save({'a': torch.ones(1)}, folder / 'warm.pth')
    paths = {}
    for number, (name, (make, _)) in enumerate(ATTACKS.items()):
        paths[name] = folder / f'{number}.pth'
        paths[name].write_bytes(make())
    read = read_in_process([folder / 'warm.safetensors', folder / 'warm.pth', *paths.values()])
    assert read[str(folder / 'warm.pth')]['outcome'] == 'loads'
    return {name: dict(read[str(path)], size=path.stat().st_size) for name, path in paths.items()}


@pytest.mark.parametrize('name', ATTACKS)
def test_an_attack_is_one_sentence(record_fault, results, name):
    result, expected = results[name], ATTACKS[name][1]
    assert result['done'] == []
    if expected is None:
        assert result['outcome'] == 'loads', result
    else:
        assert result['outcome'] == 'CheckpointError', result
        assert re.search(expected, result['sentence']), result['sentence']
        assert len(result['sentence'].splitlines()) == 1
        assert len(result['sentence']) < 1000
    record_fault('doors')


@pytest.mark.parametrize('name', ATTACKS)
def test_an_attack_takes_no_more_memory_than_its_size_allows(record_fault, results, name):
    assert results[name]['peak_mib'] < 64 + 8 * results[name]['size'] / 2**20
    record_fault('memory')
