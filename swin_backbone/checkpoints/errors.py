"""Errors of checkpoints, and lists of names in them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, is damaged, or does not fit the model. The message is one sentence."""


class RefusedCheckpoint(CheckpointError):
    """A complete checkpoint with objects that are not allowed or not installed."""


@contextmanager
def naming(checkpoint: object) -> Iterator[None]:
    """Put the name of a checkpoint before the message of a CheckpointError."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f'checkpoint {str(checkpoint)!r}: {error}') from error.__cause__


def first_of(names: Sequence[object], number: int = 3) -> str:
    """Join the first names, and the number of further ones."""
    rest = len(names) - number
    return ', '.join(map(str, names[:number])) + (f' and {rest} more' if rest > 0 else '')
