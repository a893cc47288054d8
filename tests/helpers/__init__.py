"""Helpers of several test files. `pythonpath` in pyproject.toml makes the helpers importable."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
# For subprocesses: the package of the work tree, and the helpers.
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / 'tests'), os.environ.get('PYTHONPATH', '')])
