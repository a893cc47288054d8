"""Run programs in a new process, with the package of the work tree."""

import os
import subprocess
import sys

from helpers import ROOT


def run_python(*words, status=0, folder=ROOT, path=ROOT, **variables):
    """Return the finished process of `python WORDS`.

    Args:
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
