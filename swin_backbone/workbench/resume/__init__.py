"""Checkpoints of a training: save, find the latest, resume."""

import mmengine  # noqa: F401 - first: the registration after this import imports files of this folder
