"""Read checkpoints of any origin, and fit them to a whole model."""

import mmengine  # noqa: F401 - first: the registration after this import imports files of this folder
