"""What this package raises for a training that cannot go on."""


class TrainingStopped(RuntimeError):
    """Training ended before its time; one sentence says why, and from where to go on."""
