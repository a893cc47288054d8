"""One training at a time in a working folder: others would mix their checkpoints with its own."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ...whole_files import write_whole
from ..checkpointing.names import is_own_file
from ..errors import TrainingStopped

LOCK, HOLDER = '.training.lock', '.training.json'  # a lock file is no place for text: on Windows none can be read


@contextmanager
def only_training_in(work_dir: str, rank: int = 0) -> Iterator[None]:
    """While this lasts, this process trains in a folder, and no other does. Tests and other tools go on.

    The operating system lets go of the lock when the process ends, however it ends.

    Args:
        rank: of this process in its run. The first holds the lock for all.

    Raises:
        TrainingStopped: if another process trains there, naming it.
    """
    if rank:
        yield
        return
    lock = FileLock(Path(work_dir, LOCK))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TrainingStopped(
            f'{_holder(Path(work_dir, HOLDER))} trains in {work_dir}, and would mix its checkpoints with those of this '
            'training: wait for it, end it, or take another --work-dir'
        ) from None
    try:
        since = datetime.now().astimezone().isoformat(timespec='seconds')
        holder = dict(pid=os.getpid(), host=socket.gethostname(), since=since)
        write_whole(Path(work_dir, HOLDER), json.dumps(holder).encode())
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes()[:1000]) if is_own_file(path) else {}
        return f'process {holder["pid"]:d} on {holder["host"]:.100}, since {holder["since"]:.40},'
    except (OSError, ValueError, KeyError, TypeError):  # it has only just begun
        return 'another process'
