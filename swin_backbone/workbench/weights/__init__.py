"""Read checkpoints of any origin, and fit them to a whole model."""

import mmengine  # noqa: F401 - before the files of this folder: importing mmengine registers classes of them
