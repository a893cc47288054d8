"""Train with mmengine's Runner: run, watch, stop and lock a training."""

import mmengine  # noqa: F401 - first: the registration after this import imports files of this folder
