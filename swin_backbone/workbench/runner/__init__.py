"""Train with mmengine's Runner: run, watch, stop and lock a training."""

import mmengine  # noqa: F401 - before the files of this folder: importing mmengine registers classes of them
