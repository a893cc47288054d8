"""The names of checkpoints: no file of another name is read, written over or removed because a checkpoint says so."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

STEP = r'(\d+)(?:_iter_(\d+))?'  # the second in the middle of an epoch
EPOCHS, ITERATIONS = 'epoch_{}.pth', 'iter_{}.pth'


def number_in(name: str, templates: Iterable[str]) -> Optional[re.Match[str]]:
    """The match of a name with the first template that has made it, `STEP` in the place of its {}."""
    return next(filter(None, (re.fullmatch(_pattern(template), name) for template in templates)), None)


def is_own_file(path: Any) -> bool:
    """Whether it is a plain file, and no link to one elsewhere."""
    return os.path.isfile(path) and not os.path.islink(path)


def keep_own_names(runner: Runner, hub: dict[str, dict[str, Any]]) -> None:
    """Leave of a checkpoint's message hub only what this run's CheckpointHook could have noted, in place.

    mmengine's removes the files that it finds there: those of `keep_ckpt_ids`, and `best_ckpt`. A best checkpoint is
    looked for where the folder is now.
    """
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    info = hub['runtime_info']
    for key in [key for key in info if key == 'keep_ckpt_ids' or key.startswith('best_ckpt')]:
        value = info.pop(key)
        if hook is None or not hasattr(hook, 'folder'):
            pass  # of another package: where it writes is not known
        elif key == 'keep_ckpt_ids':
            steps = value if isinstance(value, (list, tuple)) else []
            info[key] = [step for step in steps if type(step) in (int, str) and re.fullmatch(STEP, str(step))]
        elif isinstance(value, str) and re.fullmatch(r'best_[^/\\]+_' + _pattern(hook.filename_tmpl), _last(value)):
            folder = hook.folder(runner)
            path = os.path.join(folder, _last(value))
            if '://' in folder or is_own_file(path):
                info[key] = path
        if key not in info:
            hub['resumed_keys'].pop(key, None)


def partials(folder: Path, prefix: str, template: str) -> Iterable[Path]:
    """What a process that was killed left of the checkpoints that it was writing."""
    for path in folder.glob(f'{prefix}*'):
        name = path.name.removeprefix(prefix)
        if is_own_file(path) and re.fullmatch(r'(best_[^/\\]+_)?' + _pattern(template), name):
            yield path


def _last(path: str) -> str:
    return re.split(r'[/\\]', path)[-1]


def _pattern(template: str) -> str:
    return re.sub(r'\\\{.*?\\\}', lambda _: STEP, re.escape(template))
