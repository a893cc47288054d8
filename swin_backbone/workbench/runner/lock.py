"""A lock for one training at a time in a working folder: two trainings would mix their checkpoints."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ...openmmlab.errors import TrainingStopped
from ...whole_files import write_whole

LOCK, HOLDER = '.training.lock', '.training.txt'  # two files: Windows cannot read a locked file


@contextmanager
def only_training_in(work_dir: str, rank: int = 0) -> Iterator[None]:
    """Keep other trainings out of a folder while the context lasts. Tests and other tools take no lock.

    The operating system releases the lock at the end of the process.

    Args:
        rank: rank of this process. Rank 0 holds the lock for all ranks.

    Raises:
        TrainingStopped: if another process trains in the folder, naming the process.
    """
    if rank:
        yield
        return
    Path(work_dir).mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(work_dir, LOCK))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = Path(work_dir, HOLDER)
        words = holder.read_text() if holder.is_file() else ''
        raise TrainingStopped(
            f'{words or "another process"} trains in {work_dir}, and two trainings would mix their checkpoints: '
            'wait, end the process, or take another --work-dir'
        ) from None
    try:
        since = datetime.now().astimezone().isoformat(timespec='seconds')
        words = f'process {os.getpid()} on {socket.gethostname()}, since {since},'
        write_whole(Path(work_dir, HOLDER), words.encode())
        yield
    finally:
        lock.release()
