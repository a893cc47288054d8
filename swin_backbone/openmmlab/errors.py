"""The errors of data that is wrong and of a training that cannot go on, and errors as sentences."""

from collections import Counter

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
        self.counts: Counter = Counter()
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
