"""Commands that several processes start at one moment: each succeeds, or says in a sentence who works there."""

import json
import re

import pytest
from helpers import in_process
from helpers.at_once import NUMBER, at_once
from helpers.openmmlab.own_data import detection_of

from swin_backbone.checkpoints import read_checkpoint

pytestmark = pytest.mark.train

MANY = pytest.param(NUMBER, marks=pytest.mark.slow)
IN_USE = re.compile(r'(process \d+ on \S+, since \S+,|another process) \w+ (in|to) .*: wait, end the process, or take')
THERE = re.compile(r'/\S+ is there already: write to another place')


def run(_, *command):
    """Return the last line of a command's output, or its errors. A traceback is no sentence."""
    result = in_process.run(*command)
    assert 'Traceback' not in result.stderr, result.stderr
    return 'done' if result.returncode == 0 else result.stderr.strip().splitlines()[-1]


def outcomes(number, *command):
    """Return how many of the processes succeeded, and what the others said."""
    said = at_once(run, *command, number=number)
    return said.count('done'), [line for line in said if line != 'done']


@pytest.fixture(scope='module')
def trained(own, tmp_path_factory):
    """Return the options of a command on the data: config, checkpoint, data."""
    (config, *options), work = detection_of(own), tmp_path_factory.mktemp('work')
    in_process.run_well('tools/train.py', config, *options, '--work-dir', work)
    return [config, work / 'epoch_1.pth', *options]


@pytest.mark.parametrize('number', [2, MANY])
def test_trainings_in_one_folder(tmp_path, own, number):
    """The folder has the files of one training: the others were refused before their first file."""
    done, others = outcomes(number, 'tools/train.py', *detection_of(own), '--work-dir', tmp_path / 'work')
    assert (done, len(others)) == (1, number - 1)
    assert all(map(IN_USE.search, others)), others
    assert len([*tmp_path.glob('work/*/*.log')]) == 1
    assert read_checkpoint(str(tmp_path / 'work' / 'epoch_1.pth'))['meta']['epoch'] == 1


@pytest.mark.slow
def test_reports_tests_and_pictures_in_one_folder(tmp_path, own, trained):
    config, checkpoint, *_ = trained
    saved = checkpoint.parent / config.name
    for command, results in (
        (['tools/report.py', *trained, '--out-dir', tmp_path / 'report'], 'report/report.json'),
        (['tools/test.py', *trained, '--work-dir', tmp_path / 'work', '--out', tmp_path / 'a.pkl'], 'a.pkl'),
        (
            ['tools/infer.py', own / 'images/val', saved, '--weights', checkpoint, '--out-dir', tmp_path / 'drawn'],
            'drawn/results.json',
        ),
    ):
        done, others = outcomes(NUMBER, *command)
        assert done >= 1, others
        assert [line for line in others if not (IN_USE.search(line) or THERE.search(line))] == []
        assert (tmp_path / results).stat().st_size
    assert json.loads((tmp_path / 'report' / 'report.json').read_bytes())['task'] == 'detection'
