"""Errors of checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, is damaged, or does not fit the model. The message is one sentence."""


class RefusedCheckpoint(CheckpointError):
    """A complete checkpoint with objects that are not allowed or not installed."""


@contextmanager
def name_in_errors(checkpoint: object) -> Iterator[None]:
    """Put the name of a checkpoint before the message of a CheckpointError."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f'checkpoint {str(checkpoint)!r}: {error}') from error.__cause__
