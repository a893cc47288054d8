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

from ...outputs import RECORD, Outputs
from ...pictures.colours import distinct_colours
from ...whole_files import PARTIAL, write_whole
from ..errors import DataError
from .predict import encode_labels


@contextmanager
def written_by_others(outputs: Outputs) -> Iterator[Path]:
    """Yield a temporary folder for a toolbox, and move its files to the folder of `outputs` at the end.

    Raises:
        OSError: see `Outputs.write_by`.
    """
    outputs.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=PARTIAL, dir=outputs.folder) as beside:
        try:
            yield Path(beside)
        finally:
            for path in sorted(Path(beside).rglob('*')):
                if path.is_file():
                    outputs.write_by(outputs.folder / path.relative_to(beside), path.replace)


def own_folder(folder: Path, overwrite: bool) -> Outputs:
    """Return the outputs below a folder.

    Raises:
        FileExistsError: if the folder has a file of the user, unless `overwrite` is set.
    """
    outputs = Outputs(folder, overwrite=overwrite)
    for path in sorted(folder.rglob('*')):
        is_partial = path.relative_to(folder).parts[0].startswith(PARTIAL)  # of a test that was killed
        if not (path.is_dir() or path.name == RECORD or is_partial):
            outputs.check(path)
    return outputs


class OneFileEachHook(Hook):
    """Before a test, check that pictures of the data set have different names and are not overwritten.

    Args:
        outputs: owner of the files.
        suffix: of the files; '': as the picture.

    Raises:
        DataError: if the results of two pictures have one name.
        FileExistsError: if a result would replace a file of the user.
    """

    def __init__(self, outputs: Outputs, suffix: str = ''):
        self.outputs, self.suffix = outputs, suffix

    def before_test(self, runner: Runner) -> None:
        dataset = runner.test_loop.dataloader.dataset
        pictures: dict[str, str] = {}
        for index in range(len(dataset)):
            item = dataset.get_data_info(index)
            picture = Path(item['img_path'])
            name = picture.stem + self.suffix if self.suffix else picture.name
            other = pictures.setdefault(name.casefold(), str(picture))
            if other != str(picture):
                raise DataError(f'{other} and {picture} would be written to one file, {self.outputs.folder / name}')
            self.outputs.protect(*(item[key] for key in ('img_path', 'seg_map_path') if item.get(key)))
        self.outputs.check(*(self.outputs.folder / name for name in pictures))


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
