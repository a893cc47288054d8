"""Names of checkpoints. Files with foreign names are neither read, replaced nor removed."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

NUMBER = r'(\d+)(?:_iter_(\d+))?'  # the iteration is in names from the middle of an epoch
EPOCHS, ITERATIONS = 'epoch_{}.pth', 'iter_{}.pth'


def number_in(name: str, templates: Iterable[str]) -> Optional[re.Match[str]]:
    """Return the first match of a name with templates, with `NUMBER` in the place of {}."""
    return next(filter(None, (re.fullmatch(_pattern(template), name) for template in templates)), None)


def is_own_file(path: Any) -> bool:
    """Return whether a path is a regular file, and no link."""
    return os.path.isfile(path) and not os.path.islink(path)


def keep_own_names(runner: Runner, hub: dict[str, dict[str, Any]]) -> None:
    """Remove foreign files from a checkpoint's message hub, in place, and find a best checkpoint in this run's folder.

    mmengine's CheckpointHook deletes the files of `keep_ckpt_ids` and `best_ckpt`.
    """
    hook = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    info = hub['runtime_info']
    for key in [key for key in info if key == 'keep_ckpt_ids' or key.startswith('best_ckpt')]:
        value = info.pop(key)
        if hook is None or not hasattr(hook, 'folder'):
            pass  # the folder of a foreign hook is unknown
        elif key == 'keep_ckpt_ids':
            steps = value if isinstance(value, (list, tuple)) else []
            info[key] = [step for step in steps if type(step) in (int, str) and re.fullmatch(NUMBER, str(step))]
        elif isinstance(value, str) and re.fullmatch(r'best_[^/\\]+_' + _pattern(hook.filename_tmpl), _last(value)):
            folder = hook.folder(runner)
            path = os.path.join(folder, _last(value))
            if '://' in folder or is_own_file(path):
                info[key] = path
        if key not in info:
            hub['resumed_keys'].pop(key, None)


def partials(folder: Path, prefix: str, template: str) -> Iterable[Path]:
    """Yield half-written checkpoints of a killed process."""
    for path in folder.glob(f'{prefix}*'):
        name = path.name.removeprefix(prefix)
        if is_own_file(path) and re.fullmatch(r'(best_[^/\\]+_)?' + _pattern(template), name):
            yield path


def _last(path: str) -> str:
    return re.split(r'[/\\]', path)[-1]


def _pattern(template: str) -> str:
    return re.sub(r'\\\{.*?\\\}', lambda _: NUMBER, re.escape(template))
