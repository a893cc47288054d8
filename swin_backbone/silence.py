"""Hide what other packages print."""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from threading import RLock

_streams = RLock()


@contextmanager
def silent() -> Iterator[None]:
    """Hide outputs and errors that Python code prints. The streams are settings of the process: threads take turns."""
    with _streams, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield
