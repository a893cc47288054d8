"""Which checkpoint `--resume` goes on from, when some are damaged, missing or elsewhere."""

import os
from pathlib import Path
from typing import Optional

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.logging import MMLogger

from ...checkpoints import CheckpointError, read_checkpoint
from .fields import check_resumable
from .names import EPOCHS, ITERATIONS, is_own_file, number_in

LAST = 'last_checkpoint'
MAX_PATH = 4096  # bytes


def newest_whole_checkpoint(work_dir: str, out_dir: str, template: str, iterations_an_epoch: int) -> Optional[str]:
    """The checkpoint to resume, on all ranks the first one's choice.

    That is the one whose name `last_checkpoint` has, in this folder; else the newest of those here that are not newer,
    and only then newer ones, which may be of an earlier training. Each is read before it is taken. What has another
    name, is elsewhere or is a link is none of them.

    Args:
        work_dir: where `last_checkpoint` is.
        out_dir: where the checkpoints are.
        template: how they are called, with {} for a number, beside mmengine's epoch_{}.pth and iter_{}.pth.
        iterations_an_epoch: to compare epochs with iterations.

    Returns:
        Its path, or None where there is none at all.

    Raises:
        CheckpointError: if there are checkpoints, and none is whole.
    """
    answer: list[Optional[str]] = [None, None]
    if is_main_process():
        try:
            answer[0] = _choose(work_dir, out_dir, template, iterations_an_epoch)
        except CheckpointError as error:
            answer[1] = str(error)
    broadcast_object_list(answer)
    if answer[1] is not None:
        raise CheckpointError(answer[1])
    return answer[0]


def _choose(work_dir: str, out_dir: str, template: str, iterations_an_epoch: int) -> Optional[str]:
    logger = MMLogger.get_current_instance()
    pointer = Path(work_dir, LAST)
    named = _read(pointer)
    templates = (template, EPOCHS, ITERATIONS)
    if '://' in out_dir:  # of another backend than this machine's disk, which the config names
        is_here = named.startswith(f'{out_dir.rstrip("/")}/') and number_in(named.rpartition('/')[2], templates)
        return named if is_here else None

    def progress(name: str) -> Optional[int]:
        """How many iterations are behind a checkpoint, by its name."""
        match = number_in(name, templates)
        if match is None:
            return None
        number, iteration = match.groups()
        if iteration is not None:
            return int(iteration)
        return int(number) * (1 if name.startswith('iter') else iterations_an_epoch)

    files = {path for folder in {work_dir, out_dir} for path in Path(folder).glob('*.pth') if is_own_file(path)}
    found = {path: done for path, done in ((path, progress(path.name)) for path in files) if done is not None}
    name = Path(named).name
    last = progress(name)
    newest_first = sorted(found, key=lambda path: (last is None or found[path] <= last, found[path]), reverse=True)
    newest = Path(out_dir, name)  # not where it was: folders are moved and copied
    candidates = sorted(newest_first, key=lambda path: path != newest)
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
        raise CheckpointError(f'{pointer} names {named}, and neither that nor another checkpoint is in {out_dir}')
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
        raise CheckpointError(f'checkpoint {str(path)!r}: it is none of a training, without optimizer')
    check_resumable(checkpoint, os.fspath(path))
