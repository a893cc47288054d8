"""Files that the toolboxes write during a test: pictures, label maps, predictions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...whole_files import PARTIAL
from ..errors import DataError


@contextmanager
def written_by_others(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for a toolbox, and move its files to `folder` at the end.

    Each process of a run has a folder of its own. Of a picture that the sampler gives to two processes, the file of one
    stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=PARTIAL, dir=folder) as beside:
        try:
            yield Path(beside)
        finally:
            for path in sorted(Path(beside).rglob('*')):
                target = folder / path.relative_to(beside)
                if path.is_dir():
                    target.mkdir(exist_ok=True)
                else:
                    path.replace(target)


def require_different_names(dataset: Any, with_suffix: bool) -> None:
    """Check that the pictures of a data set have different names, by which the toolboxes name their files.

    Args:
        with_suffix: the names of files have the suffix of the picture.

    Raises:
        DataError: with two pictures of one name.
    """
    pictures: dict[str, str] = {}
    for index in range(len(dataset)):
        path = dataset.get_data_info(index)['img_path']
        name = Path(path).name if with_suffix else Path(path).stem
        other = pictures.setdefault(name.casefold(), path)
        if other != path:
            raise DataError(f'{other} and {path} would be written to one file')
