"""What this package raises for a checkpoint."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, is not what it should be, or does not fit the model; one sentence says why."""
