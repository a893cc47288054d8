"""A lock for one training at a time in a working folder: two trainings would mix their checkpoints."""

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

LOCK, HOLDER = '.training.lock', '.training.json'  # two files: Windows cannot read a locked file


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
        raise TrainingStopped(
            f'{_holder(Path(work_dir, HOLDER))} trains in {work_dir}, and two trainings would mix their checkpoints: '
            'wait, end the process, or take another --work-dir'
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
    except (OSError, ValueError, KeyError, TypeError):  # the other training has just begun
        return 'another process'
