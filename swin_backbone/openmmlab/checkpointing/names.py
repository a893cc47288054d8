"""Names of checkpoints. Files with foreign names are neither read, replaced nor removed."""

import os
import re
from typing import Any

EPOCHS, ITERATIONS = 'epoch_{}.pth', 'iter_{}.pth'


def is_checkpoint_name(name: str, template: str, best: bool = False) -> bool:
    """Return whether a file name is of a checkpoint.

    Args:
        template: name of a checkpoint, with {} for a number. In the middle of an epoch, the iteration follows.
        best: also names of best checkpoints.
    """
    pattern = re.sub(r'\\\{.*?\\\}', lambda _: r'\d+(_iter_\d+)?', re.escape(template))
    return re.fullmatch((r'(best_[^/\\]+_)?' if best else '') + pattern, name) is not None


def is_own_file(path: Any) -> bool:
    """Return whether a path is a regular file, and no link."""
    return os.path.isfile(path) and not os.path.islink(path)
