"""The errors of data that is wrong and of a training that cannot go on, and errors as sentences."""

from collections import Counter
from pathlib import Path

from ..checkpoints import CheckpointError
from .error_origin import error_file, failing_line, place_of

IN_WORKER = 'Original Traceback (most recent call last)'
MOST_CHARACTERS = 1000
WITHOUT_BASE = 'NoneType takes no arguments'  # where what a class inherits from could not be imported
WHERE = f'{__name__}.DataError: '
EXAMPLES = 3  # of each kind of fault


class DataError(ValueError):
    """Data that cannot be trained or tested on: one sentence that names the file."""

    @property
    def sentence(self) -> str:
        """The message without the traceback that torch writes in front of what a worker process raised."""
        return str(self).rpartition(WHERE)[2].strip()


class Faults:
    """What is wrong with many things: of each kind how many, and the first of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append(example)

    def update(self, other: 'Faults', where: str) -> None:
        """Add those of another, which are in a file."""
        for kind, examples in other.examples.items():
            kind_there = f'{where}: {kind}'
            self.counts[kind_there] += other.counts[kind]
            self.examples[kind_there] = [*self.examples.get(kind_there, ()), *examples][:EXAMPLES]

    def sentences(self) -> list[str]:
        """What is wrong, one kind each."""
        return [f'{kind}: {self.counts[kind]}, as {"; ".join(examples)}' for kind, examples in self.examples.items()]


class TrainingStopped(RuntimeError):
    """Training ended before its time; one sentence says why, and from where to go on."""


class ConfigError(ValueError):
    """A config that cannot work: one sentence that names the key, what it got, and what it takes."""


KNOWN = (CheckpointError, ConfigError, TrainingStopped)  # sentences already


def sentence_of(error: BaseException) -> str:
    """The message of an error in one line, with its kind where the message alone does not say what is wrong.

    Where an error comes from a part of a config, its key, class and settings go before it.
    """
    if isinstance(error, DataError):
        return error.sentence
    if isinstance(error, KNOWN):
        return _one_line(str(error))
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f'{error.filename} ({error.strerror})'  # as swin_backbone/command_line.py says it, without a number
    where = place_of(error)
    return (f'{where}: ' if where else '') + _message(error)


def _message(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return 'it is nested too deeply, or holds itself'
    if isinstance(error, UnicodeDecodeError):
        return f'it is no text in UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x})'
    if WITHOUT_BASE in str(error) and 'mmpretrain' in Path(error_file(error)).parts:
        return (
            f"mmpretrain cannot be imported beside this transformers ({error}): pip install 'transformers<5', or "
            'uninstall it, which classification and SimMIM do not need'
        )
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if IN_WORKER in message:  # of torch's: the traceback of what a worker process raised
        message = message.strip().rpartition('\n')[2]
    message = _one_line(message) or f'`{failing_line(error)}` failed'
    return message if isinstance(error, (ValueError, TypeError, OSError)) else f'{type(error).__name__}: {message}'


def _one_line(message: str) -> str:
    message = ' '.join(message.split())
    return message if len(message) <= MOST_CHARACTERS else f'{message[:MOST_CHARACTERS]}...'
