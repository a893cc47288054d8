"""Find the checkpoint for `--resume`, also if checkpoints are damaged, missing or moved."""

import re
from pathlib import Path
from typing import Optional

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.logging import MMLogger

from ...checkpoints.errors import CheckpointError
from ...checkpoints.reading import read_checkpoint
from .exact_resume import require_training_state

EPOCHS, ITERATIONS = 'epoch_{}.pth', 'iter_{}.pth'  # names of checkpoints
POINTER_FILE = 'last_checkpoint'  # mmengine's file with the path of the last checkpoint


def find_newest_checkpoint(work_dir: str, out_dir: str, template: str) -> Optional[str]:
    """Return the path of the checkpoint to resume, the same on all ranks; None if there is no checkpoint.

    The checkpoint named in `last_checkpoint` comes first, then the checkpoint that was written last. Damaged
    checkpoints are skipped, and files with other names are ignored.

    Args:
        work_dir: folder of `last_checkpoint`.
        out_dir: folder of the checkpoints.
        template: name of a checkpoint, with {} for a number. epoch_{}.pth and iter_{}.pth are allowed too.

    Raises:
        CheckpointError: if all checkpoints are damaged.
    """
    path = problem = None
    if is_main_process():
        try:
            path = _choose(work_dir, out_dir, template)
        except CheckpointError as error:
            problem = str(error)
    shared = [path, problem]
    broadcast_object_list(shared)
    path, problem = shared
    if problem is not None:
        raise CheckpointError(problem)
    return path


def _choose(work_dir: str, out_dir: str, template: str) -> Optional[str]:
    logger = MMLogger.get_current_instance()
    pointer = Path(work_dir, POINTER_FILE)
    pointed = pointer.read_text(errors='replace').strip() if pointer.is_file() else ''
    if '://' in out_dir:  # a file backend of the config
        return pointed or None
    # In the middle of an epoch, the iteration follows the number
    names = [re.sub(r'\\\{.*?\\\}', r'\\d+(_iter_\\d+)?', re.escape(each)) for each in (template, EPOCHS, ITERATIONS)]
    last_path = Path(out_dir, Path(pointed).name)  # the folder may have moved
    files = {path for folder in {work_dir, out_dir} for path in Path(folder).glob('*.pth')}
    checkpoints = [path for path in files if re.fullmatch('|'.join(names), path.name) and path.is_file()]
    checkpoints.sort(key=lambda path: (path == last_path, path.stat().st_mtime_ns), reverse=True)
    if last_path not in checkpoints and (pointed or checkpoints):
        logger.warning(f'{pointer} names {pointed or "nothing"}, and {out_dir} has no checkpoint of that name.')
    problems = []
    for path in checkpoints:
        try:
            checkpoint = read_checkpoint(path)
            require_training_state(checkpoint, str(path))
            if 'optimizer' not in checkpoint:
                raise CheckpointError(f'checkpoint {str(path)!r} has no optimizer')
        except CheckpointError as error:
            logger.warning(f'Not resumed: {error}')
            problems.append(str(error))
        else:
            logger.info(f'Resuming {path}.')
            return str(path)
    if problems:
        raise CheckpointError(f'no checkpoint in {out_dir} is whole: ' + '; '.join(problems))
    if pointed:
        raise CheckpointError(f'{pointer} names {pointed}, and {out_dir} has no checkpoint')
    return None
