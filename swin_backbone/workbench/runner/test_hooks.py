"""Files that the toolboxes write during a test: pictures, label maps, predictions."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ...openmmlab.errors import DataError
from ...whole_files import PARTIAL, write_whole
from ..pictures.colours import distinct_colours, encode_labels


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


class MaskAreasHook(Hook):
    """Remove the boxes from `PREFIX.segm.json`, which mmdet's CocoMetric writes with outfile_prefix=PREFIX.

    mmdet evaluates masks without boxes. With boxes in the file, pycocotools takes their areas as those of the masks,
    and AP by size differs from the printed AP.
    """

    def after_val_epoch(self, runner: Runner, metrics: Any = None) -> None:
        """See `Hook`."""
        self._remove_boxes(runner.val_loop)

    def after_test_epoch(self, runner: Runner, metrics: Any = None) -> None:
        """See `Hook`."""
        self._remove_boxes(runner.test_loop)

    def _remove_boxes(self, loop: Any) -> None:
        for metric in getattr(getattr(loop, 'evaluator', None), 'metrics', ()):  # not in every foreign loop
            path = Path(f'{getattr(metric, "outfile_prefix", None)}.segm.json')
            if is_main_process() and path.is_file():
                objects = json.loads(path.read_bytes())
                for item in objects:
                    item.pop('bbox', None)
                write_whole(path, json.dumps(objects).encode())


class WriteLabelsHook(Hook):
    """Write a segmentor's predictions of a test as PNGs, as tools/infer.py.

    Args:
        folder: of the files.
        first_label: value of the first class.
    """

    def __init__(self, folder: Path, first_label: int = 0):
        self.folder, self.first_label = folder, first_label

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """See `Hook`."""
        meta = dict(runner.test_loop.dataloader.dataset.metainfo)
        meta['palette'] = meta.get('palette') or distinct_colours(len(meta['classes']))
        for sample in outputs:
            labels = sample.pred_sem_seg.data[0].cpu().numpy()
            path = self.folder / f'{Path(sample.img_path).stem}.png'
            path.write_bytes(encode_labels(labels, meta, self.first_label))
