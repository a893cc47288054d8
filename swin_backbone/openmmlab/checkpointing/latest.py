"""Find the checkpoint for `--resume`, also if checkpoints are damaged, missing or moved."""

import os
from pathlib import Path
from typing import Optional

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.logging import MMLogger

from ...checkpoints import CheckpointError, read_checkpoint
from .exact_resume import check_resumable
from .names import EPOCHS, ITERATIONS, is_own_file, number_in

LAST = 'last_checkpoint'
MAX_PATH = 4096  # bytes


def newest_whole_checkpoint(work_dir: str, out_dir: str, template: str, iterations_an_epoch: int) -> Optional[str]:
    """Return the path of the checkpoint to resume, the same on all ranks; None if there is no checkpoint.

    The order is: the checkpoint named in `last_checkpoint`; then older checkpoints, the newest first; then newer
    checkpoints, which may be of an earlier training. Damaged checkpoints are skipped. Links and files with foreign
    names are ignored.

    Args:
        work_dir: folder of `last_checkpoint`.
        out_dir: folder of the checkpoints.
        template: name of a checkpoint, with {} for a number. epoch_{}.pth and iter_{}.pth are allowed too.
        iterations_an_epoch: iterations per epoch, to compare epochs with iterations.

    Raises:
        CheckpointError: if all checkpoints are damaged.
    """
    path_and_error: list[Optional[str]] = [None, None]
    if is_main_process():
        try:
            path_and_error[0] = _choose(work_dir, out_dir, template, iterations_an_epoch)
        except CheckpointError as error:
            path_and_error[1] = str(error)
    broadcast_object_list(path_and_error)
    if path_and_error[1] is not None:
        raise CheckpointError(path_and_error[1])
    return path_and_error[0]


def _choose(work_dir: str, out_dir: str, template: str, iterations_an_epoch: int) -> Optional[str]:
    logger = MMLogger.get_current_instance()
    pointer = Path(work_dir, LAST)
    named = _read(pointer)
    templates = (template, EPOCHS, ITERATIONS)
    if '://' in out_dir:  # a file backend of the config
        is_here = named.startswith(f'{out_dir.rstrip("/")}/') and number_in(named.rpartition('/')[2], templates)
        return named if is_here else None

    def progress(name: str) -> Optional[int]:
        """Return the iterations before a checkpoint, by its name."""
        match = number_in(name, templates)
        if match is None:
            return None
        number, iteration = match.groups()
        if iteration is not None:
            return int(iteration)
        return int(number) * (1 if name.startswith('iter') else iterations_an_epoch)

    files = {path for folder in {work_dir, out_dir} for path in Path(folder).glob('*.pth') if is_own_file(path)}
    iterations = {path: done for path in files if (done := progress(path.name)) is not None}
    last = progress(Path(named).name)
    newest = Path(out_dir, Path(named).name)  # the folder may have moved

    def rank(path: Path) -> tuple[bool, bool, int]:
        done = iterations[path]
        return path == newest, last is None or done <= last, done

    candidates = sorted(iterations, key=rank, reverse=True)
    if named and newest not in candidates:
        logger.warning(f'{pointer} names {named}, and {out_dir} has no checkpoint of that name.')
    elif candidates and not named:
        logger.warning(f'{pointer} is {"empty" if is_own_file(pointer) else "not there"}.')
    problems = []
    for path in candidates:
        try:
            _check(path)
        except CheckpointError as error:
            logger.warning(f'Not resumed: {error}')
            problems.append(str(error))
        else:
            logger.info(f'Resuming {path}.')
            return str(path)
    if problems:
        raise CheckpointError(f'no checkpoint in {out_dir} is whole: ' + '; '.join(problems))
    if named:
        raise CheckpointError(f'{pointer} names {named}, and {out_dir} has no checkpoint')
    return None


def _read(pointer: Path) -> str:
    if not is_own_file(pointer):
        return ''
    with pointer.open('rb') as file:
        text = file.read(MAX_PATH).decode(errors='replace').strip()
    return text if text.isprintable() else ''


def _check(path: Path) -> None:
    checkpoint = read_checkpoint(path)
    if not isinstance(checkpoint, dict) or 'optimizer' not in checkpoint:
        raise CheckpointError(f'checkpoint {str(path)!r} has no optimizer, and is of no training')
    check_resumable(checkpoint, os.fspath(path))
