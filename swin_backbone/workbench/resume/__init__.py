"""Checkpoints of a training: save, find the latest, resume."""

import mmengine  # noqa: F401 - before the files of this folder: importing mmengine registers classes of them
