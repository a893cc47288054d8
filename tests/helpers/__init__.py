"""What several test files share. `pythonpath` in pyproject.toml lets tests import it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
# For processes of their own, which import the package of this work tree, and these helpers.
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / 'tests'), os.environ.get('PYTHONPATH', '')])
