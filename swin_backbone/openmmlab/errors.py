"""The errors of data that is wrong and of a training that cannot go on, and errors as sentences."""

WHERE = f'{__name__}.DataError: '


class DataError(ValueError):
    """Data that cannot be trained or tested on: one sentence that names the file."""

    @property
    def sentence(self) -> str:
        """The message without the traceback that torch writes in front of what a worker process raised."""
        return str(self).rpartition(WHERE)[2].strip()


class TrainingStopped(RuntimeError):
    """Training ended before its time; one sentence says why, and from where to go on."""


def sentence_of(error: Exception) -> str:
    """The message of an error, with its kind where the message alone does not say what is wrong."""
    if isinstance(error, DataError):
        return error.sentence
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f'{error.filename} ({error.strerror})'  # as tools/command_line.py says it, without a number
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return (
        message
        if isinstance(error, (ValueError, TypeError, OSError, TrainingStopped))
        else f'{type(error).__name__}: {message}'
    )
