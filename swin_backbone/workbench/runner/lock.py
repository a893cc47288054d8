"""A lock for one training at a time in a working folder: two trainings would mix their checkpoints."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ...openmmlab.errors import TrainingStopped
from ...outputs import FolderInUse, only_process


@contextmanager
def only_training_in(work_dir: str, rank: int = 0) -> Iterator[None]:
    """Keep other trainings out of a folder while the context lasts. Tests and other tools take no lock.

    Args:
        rank: rank of this process. Rank 0 holds the lock for all ranks.

    Raises:
        TrainingStopped: if another process trains in the folder, naming the process.
    """
    if rank:
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(only_process(work_dir, 'trains in', 'training'))
        except FolderInUse as error:
            raise TrainingStopped(f'{error}; two trainings would mix their checkpoints') from None
        yield
