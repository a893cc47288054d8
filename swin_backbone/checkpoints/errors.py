"""What this package raises for a checkpoint, and how errors list names."""

from collections.abc import Sequence


class CheckpointError(ValueError):
    """A checkpoint cannot be read, is not what it should be, or does not fit the model; one sentence says why."""


class RefusedCheckpoint(CheckpointError):
    """A checkpoint is whole, and asks for what is not allowed, or not there."""


def not_finite(names: Sequence[str], total: int) -> str:
    """Describe weights that are NaN or infinite, of `total` weights."""
    return (
        f'{len(names)} of its {total} weights are not finite (NaN or infinite): {first_of(names)}; '
        'its training has diverged, or the file is damaged'
    )


def first_of(names: Sequence[object], number: int = 3) -> str:
    """The first of some names, and how many there are more."""
    rest = len(names) - number
    return ', '.join(map(str, names[:number])) + (f' and {rest} more' if rest > 0 else '')
