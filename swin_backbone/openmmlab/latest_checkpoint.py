"""Which checkpoint `--resume` goes on from, when some are damaged, missing or elsewhere."""

import re
from pathlib import Path
from typing import Optional

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.logging import MMLogger

from ..checkpoints import CheckpointError, read_checkpoint

NEEDED = ('meta', 'state_dict', 'message_hub', 'optimizer')  # to go on training


def newest_whole_checkpoint(work_dir: str, out_dir: str, template: str, iterations_an_epoch: int) -> Optional[str]:
    """The checkpoint to resume, on all ranks the first one's choice.

    That is the one that `last_checkpoint` names, where it was or in this folder; else the newest of those here that
    are not newer, and only then newer ones, which may be of an earlier training. Each is read before it is taken.

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
    answer: list = [None, None]
    if is_main_process():
        try:
            answer[0] = _choose(Path(work_dir), Path(out_dir), template, iterations_an_epoch)
        except CheckpointError as error:
            answer[1] = str(error)
    broadcast_object_list(answer)
    if answer[1] is not None:
        raise CheckpointError(answer[1])
    return answer[0]


def _choose(work_dir: Path, out_dir: Path, template: str, iterations_an_epoch: int) -> Optional[str]:
    logger = MMLogger.get_current_instance()
    pointer = work_dir / 'last_checkpoint'
    named = pointer.read_text(errors='replace').strip() if pointer.is_file() else ''
    if '://' in named:
        return named
    progress = _Progress(template, iterations_an_epoch)
    here = {path: progress(path.name) for folder in {work_dir, out_dir} for path in folder.glob('*.pth')}
    found = {path: done for path, done in here.items() if done is not None}
    last = progress(Path(named).name) if named else None
    newest_first = sorted(found, key=lambda path: (last is None or found[path] <= last, found[path]), reverse=True)
    newest = [out_dir / Path(named).name, Path(named)] if named else []  # a folder that was moved or copied comes first
    candidates = list(dict.fromkeys(path for path in [*newest, *newest_first] if path.is_file()))
    if named and not any(path in candidates for path in newest):
        logger.warning(f'{pointer} names {named}, which is not there.')
    elif candidates and not named:
        logger.warning(f'{pointer} is {"empty" if pointer.is_file() else "not there"}.')
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
        raise CheckpointError(f'{pointer} names {named}, and neither that nor another checkpoint in {out_dir} is there')
    return None


def _check(path: Path) -> None:
    checkpoint = read_checkpoint(path)
    missing = [key for key in NEEDED if not isinstance(checkpoint, dict) or key not in checkpoint]
    if missing:
        raise CheckpointError(f'checkpoint {str(path)!r}: it is none of a training, without {", ".join(missing)}')


class _Progress:
    """How many iterations are behind a checkpoint, by its name; None for other files, best checkpoints among them."""

    def __init__(self, template: str, iterations_an_epoch: int) -> None:
        self.iterations_an_epoch = iterations_an_epoch
        names = (template, 'epoch_{}.pth', 'iter_{}.pth')
        self.patterns = [re.escape(name).replace(r'\{\}', r'(\d+)(?:_iter_(\d+))?') for name in names]

    def __call__(self, name: str) -> Optional[int]:
        for pattern in self.patterns:
            match = re.fullmatch(pattern, name)
            if match:
                number, iteration = match.groups()
                if iteration is not None:
                    return int(iteration)
                return int(number) * (1 if name.startswith('iter') else self.iterations_an_epoch)
        return None
