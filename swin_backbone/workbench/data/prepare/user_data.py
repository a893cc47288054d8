"""The pictures and annotations of a user as an index: a file for each split, written once, which never changes.

The folder of an index is named by a digest of what is read. Equal data have one index, which all trainings share; a
changed file gives another folder, and trainings that run keep theirs. The oldest indices are removed, if there are too
many.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional, Union

from filelock import FileLock, Timeout

from ....outputs import mark_folder
from .folder import DataFolder, format_line
from .index import IndexedSplit, write_index
from .layouts import LAYOUTS, list_data, read_data
from .objects.yolo import find_lists

VARIABLE = 'SWIN_BACKBONE_DATA'  # environment variable with the folder of all indices
DATASET_FILE = 'dataset.json'  # the file of an index that is written last
DIGITS = 16  # digits of a digest in a name
MAX_INDICES = 100
MAX_BYTES = 20 * 2**30  # size of all indices
IN_USE_S = 30 * 24 * 3600  # since the last use: a training may read its index for so long


@dataclass(frozen=True)
class UserData:
    """The pictures and annotations of a user.

    Args:
        scope: toolbox whose models take the data: 'mmdet', 'mmseg' or 'mmpretrain'.
        root: folder of the pictures.
        classes: names, in the order of their numbers.
        splits: 'train', 'val' and, if the user has one, 'test'.
        lines: what is read, and warnings.
    """

    scope: str
    root: str
    classes: tuple[str, ...]
    splits: Mapping[str, IndexedSplit]
    lines: tuple[str, ...]


def index_user_data(
    data: Union[str, Path],
    annotations: Union[str, Path, None] = None,
    classes: Optional[Sequence[str]] = None,
    *,
    scope: str = 'mmdet',
    with_masks: bool = False,
    skip_unreadable: bool = False,
) -> UserData:
    """Read what a user has, once, and write an index: a file for each split.

    It is in a folder below SWIN_BACKBONE_DATA, or ~/.cache/swin_backbone/data.

    Args:
        data: a folder, a COCO JSON, YOLO's data.yaml, or CVAT's XML.
        annotations: a file or folder, if they are not below `data`.
        classes: names of the classes. Default: from files.
        scope: 'mmdet' for objects, 'mmseg' for labels of pixels, 'mmpretrain' for classes of pictures.
        with_masks: the model takes masks of objects.
        skip_unreadable: leave out pictures whose size cannot be read, where annotations need the size.

    Raises:
        ValueError: if there is no such file or folder, or for another toolbox.
        DataError: if no layout fits, or the annotations are wrong.
        OSError: if the index cannot be written.
    """
    if scope not in LAYOUTS:
        raise ValueError(f'--data takes a config of mmdet, mmseg or mmpretrain, got default_scope={scope!r}')
    for argument, path in (('--data', data), ('--annotations', annotations)):
        if path is not None and not Path(path).exists():
            raise ValueError(f'{argument}: there is no {str(path)!r}')
    user_cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    cache_folder = Path(os.environ.get(VARIABLE) or Path(user_cache, 'swin_backbone', 'data')).absolute()
    folder = list_data(
        Path(data),
        None if annotations is None else Path(annotations),
        cache_folder,
        given_classes=classes,
        with_masks=with_masks,
        skip_unreadable=skip_unreadable,
    )
    index_folder = cache_folder / _compute_digest(folder, scope)
    try:
        mark_folder(cache_folder)
        with FileLock(f'{index_folder}.lock'):
            if (user_data := _read_index(index_folder)) is None:
                _remove_oldest(cache_folder)
                user_data = _build_index(index_folder, scope, folder)
            os.utime(index_folder)
    except OSError as error:
        if error.filename and not Path(error.filename).is_relative_to(cache_folder):
            raise  # a file of the user
        raise OSError(
            f'the index of --data cannot be written into {cache_folder} ({error.strerror or error}); the environment '
            f'variable {VARIABLE} names another folder'
        ) from error
    return user_data


def _remove_oldest(cache_folder: Path) -> None:
    """Remove the indices that were not used for longest, beyond `MAX_INDICES` and `MAX_BYTES`, after `IN_USE_S`.

    A run of a saved config reads an index without `index_user_data`: the times of its files count too.
    """
    with suppress(OSError):  # another process removes too
        indices = [path.parent for path in cache_folder.glob(f'*/{DATASET_FILE}')]
        indices.sort(key=_find_last_use)
        sizes = {path: sum(file.stat().st_size for file in path.rglob('*')) for path in indices}
        for index_folder in list(sizes):
            if len(sizes) < MAX_INDICES and sum(sizes.values()) <= MAX_BYTES:
                return
            with suppress(Timeout), FileLock(f'{index_folder}.lock', timeout=0):
                if time.time() - _find_last_use(index_folder) > IN_USE_S:
                    (index_folder / DATASET_FILE).unlink()  # the rest is no index
                    shutil.rmtree(index_folder)
                    del sizes[index_folder]


def _find_last_use(index_folder: Path) -> float:
    return max(index_folder.stat().st_mtime, *(path.stat().st_atime for path in index_folder.iterdir()))


def _compute_digest(folder: DataFolder, scope: str) -> str:
    """Return a digest of the options, of names, sizes and times of all files, and of the readers."""
    digest = hashlib.sha256()
    options = scope, str(folder.root), str(folder.ann_root), folder.only_file, folder.given_classes, folder.with_masks
    digest.update(repr((options, folder.skip_unreadable, os.path.abspath(folder.root), folder.result_folders)).encode())
    for path in sorted(Path(__file__).parents[1].rglob('*.py')):  # a changed reader of workbench/data reads again
        digest.update(path.read_bytes())
    files = {folder.root / path for path in folder.files} | {folder.ann_root / path for path in folder.ann_files}
    files |= {folder.only_file} if folder.only_file else set()
    files |= find_lists(folder) if folder.find_by_suffix('.yaml', '.yml') else set()
    for path in sorted(files):
        try:
            state = os.stat(path)
        except OSError as error:  # a broken link
            digest.update(f'{path!r} {error.errno}\n'.encode())
        else:
            digest.update(f'{path!r} {state.st_size} {state.st_mtime_ns}\n'.encode())
    return digest.hexdigest()[:DIGITS]


def _build_index(index_folder: Path, scope: str, folder: DataFolder) -> UserData:
    """Write an index, and return what it has. After an error there is no index."""
    shutil.rmtree(index_folder, ignore_errors=True)  # left by a process that has died
    index_folder.mkdir()
    try:
        records = read_data(scope, folder)
        splits, lines = write_index(scope, folder, records, index_folder)
        lines.append(format_line('index', str(index_folder)))
        user_data = UserData(scope, str(folder.root), tuple(records.classes), splits, tuple(lines))
        (index_folder / DATASET_FILE).write_text(json.dumps(asdict(user_data)), encoding='utf-8')
    except BaseException:
        shutil.rmtree(index_folder, ignore_errors=True)
        raise
    return user_data


def _read_index(index_folder: Path) -> Optional[UserData]:
    """Return what an index has; None without an index, or if its last file is not whole."""
    try:
        content = json.loads((index_folder / DATASET_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    splits = {split: IndexedSplit(**values) for split, values in content['splits'].items()}
    return UserData(content['scope'], content['root'], tuple(content['classes']), splits, tuple(content['lines']))
