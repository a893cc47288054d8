"""Helpers of several test files. `pythonpath` in pyproject.toml makes the helpers importable."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# For subprocesses: the package of the work tree, and the helpers.
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / 'tests'), os.environ.get('PYTHONPATH', '')])


def run_python(*words, status=0, folder=ROOT, path=ROOT, **variables):
    """Run Python in a new process with the package of the work tree, and return the finished process.

    Args:
        words: the command line behind `python`.
        status: the expected exit status; None for any.
        folder: the working folder.
        path: PYTHONPATH.
        variables: environment variables.
    """
    process = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env={**os.environ, 'PYTHONPATH': str(path), **variables},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert status in (None, process.returncode), process.stdout[-3000:] + process.stderr[-3000:]
    return process


def require_plain_mmdet():
    """Skip a test where mmdet does not import by itself, without the preparation of this package's commands.

    mmdet imports mmpretrain, which imports torchvision, which may be built for another torch.
    """
    imported = run_python('-c', 'import mmdet.models', status=None)
    if imported.returncode:
        pytest.skip(f'mmdet does not import by itself: {imported.stderr.splitlines()[-1]}')


@contextmanager
def edited_json(path):
    """Yield the content of a JSON file, and write the file with its changes."""
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))
