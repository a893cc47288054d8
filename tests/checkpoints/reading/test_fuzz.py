"""Checkpoints changed at random load as plain data or are a CheckpointError, in a process that may do nothing else."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from helpers import PYTHONPATH


def fuzz(folder, number, how):
    command = [sys.executable, '-m', 'helpers.checkpoints.fuzz', str(folder), str(number), str(how)]
    environment = {**os.environ, 'PYTHONPATH': PYTHONPATH}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert result.returncode == 0, result.stdout[-1000:] + result.stderr[-3000:]
    return result


@pytest.mark.parametrize('number', [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_changed_at_random(record_fault, tmp_path, number):
    counts = json.loads(fuzz(tmp_path, number, 0).stdout.splitlines()[-1])
    assert sum(counts.values()) == number
    assert set(counts) == {'loads', 'CheckpointError'}
    assert counts['loads'] > number / 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ['input.pth']
    record_fault('mutations', number)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec('atheris') is None, reason="Atheris is not installed: pip install '.[fuzz]'"
)
def test_changed_by_what_is_reached(record_fault, tmp_path):
    assert 'Done 20000 runs' in fuzz(tmp_path, 20_000, 'atheris').stderr
    record_fault('mutations', 20_000)
