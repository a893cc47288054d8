"""Predict a picture larger than memory, tile by tile."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import cv2
import numpy as np
from mmengine.structures import BaseDataElement
from numpy.typing import NDArray

from ....outputs import Outputs
from ...data.media import Frame, Medium
from ..predict import Predictor, category_ids_of
from . import writers
from .blend import Blender
from .grid import Grid, Window
from .manifest import Part, ResultBlock, parts_of
from .objects import Merger, Object, mark_cut, runs_of
from .readers import digest_of, open_picture, require

SMALLEST_OVERLAP = 32  # pixels, of a detector: the parts of a cut object are matched within the overlap


class Progress(NamedTuple):
    """Numbers of tiles of a run or shard: finished, all, and skipped among the finished."""

    done: int
    total: int
    blank: int


class Finished(NamedTuple):
    """Progress at the end of a run or shard, and the written files; a shard writes none."""

    progress: Progress
    files: list[Path]


class TiledInference:
    """Inference of a detector or segmentor on a large picture.

    Args:
        predictor: of a checkpoint or an exported folder.
        path: of the picture; see `open_picture`.
        out_dir: folder of the results. A segmentor writes `labels/NAME.tif`; a detector writes `objects/NAME.jsonl`,
            `objects/NAME.images.json` and, for a picture with coordinates, `objects/NAME.geojson`. `tiles/NAME/` is
            the manifest.
        tile: side of a tile, in pixels.
        overlap: of neighbouring tiles, in pixels, at most half a tile.
        level: of a pyramid; 0 has all pixels.
        skip_blank: skip tiles in which no channel varies by more than this number. None: skip no tile.
        score_thr: lowest score of a written object.

    Attributes:
        notes: sentences on reductions and on unaligned windows.

    Raises:
        OSError: if the picture cannot be read.
        ValueError: if an argument is out of range, a library is missing, or the model is a classifier.
    """

    def __init__(
        self,
        predictor: Predictor,
        path: Union[str, Path],
        out_dir: Union[str, Path],
        tile: int = 1024,
        overlap: int = 128,
        level: int = 0,
        skip_blank: Optional[int] = None,
        score_thr: float = 0.3,
    ):
        if predictor.scope not in ('mmdet', 'mmseg'):
            raise ValueError(f'tiles are for detectors and segmentors, got a model of {predictor.scope}')
        if skip_blank is not None and not 0 <= skip_blank <= 255:
            raise ValueError(f'skip_blank takes 0 to 255, got {skip_blank}')
        self.predictor, self.path, self.out_dir = predictor, Path(path), Path(out_dir)
        self.segments = predictor.scope == 'mmseg'
        if not self.segments and overlap < SMALLEST_OVERLAP:
            raise ValueError(f'overlap takes at least {SMALLEST_OVERLAP} pixels for a detector, got {overlap}')
        Grid((1, 1), tile, overlap)  # raises an error for a wrong argument, before a file is opened
        self.picture = open_picture(path, level)
        self.classes: list[str] = list(predictor.meta['classes'])
        if self.segments:
            require('tifffile', 'tifffile', Path('labels') / f'{self.path.stem}.tif')
        elif self.picture.coordinates:
            require('shapely', 'shapely', Path('objects') / f'{self.path.stem}.geojson')
        height, width = predictor.input_size((tile, tile))
        period, keeps_size = predictor.period, (height, width) == (tile, tile)
        self.grid = Grid(self.picture.size, tile, overlap, period if keeps_size else 1)
        self.skip_blank, self.score_thr = skip_blank, score_thr
        self.notes = [*self.picture.notes]
        if not keeps_size:
            self.notes.append(f'the test pipeline resizes tiles of {tile}x{tile} to {height}x{width}')
        elif self.grid.step % period and len(self.grid) > 1:
            self.notes.append(
                f'tiles start every {self.grid.step} pixels, which is no multiple of {period}, the period of the '
                'windows: labels differ more from the labels of the whole picture'
            )
        self.settings: dict[str, Any] = dict(
            format=1, picture=digest_of(self.path), size=self.picture.size, level=level, model=predictor.identity,
            tile=tile, overlap=overlap, skip_blank=skip_blank, score_thr=None if self.segments else score_thr,
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """Return the folder of the manifest."""
        return self.out_dir / 'tiles' / self.path.stem

    @property
    def files(self) -> list[Path]:
        """Return the paths of the results."""
        if self.segments:
            return [self.out_dir / 'labels' / f'{self.path.stem}.tif']
        suffixes = ['.jsonl', '.images.json', *(['.geojson'] if self.picture.coordinates else [])]
        return [self.out_dir / 'objects' / (self.path.stem + suffix) for suffix in suffixes]

    def run(
        self,
        shard: Optional[tuple[int, int]] = None,
        resume: bool = False,
        overwrite: bool = False,
        report: Callable[[Progress], object] = lambda progress: None,
    ) -> Finished:
        """Predict all tiles and write the results, or predict the tiles of a shard.

        Args:
            shard: number from 0, and number of shards; `merge` writes the results.
            resume: continue after the finished tiles.
            overwrite: replace files of the user, and finished tiles.
            report: called after each tile.

        Raises:
            ValueError: if there are finished tiles without `resume` and `overwrite`, or of another model or other
                settings, or another process works on them.
            FileExistsError: if a result would replace a file of the user; see `Outputs`.
            OSError: if the picture cannot be read, or the results cannot be written.
        """
        number, count = shard or (0, 1)
        if not 0 <= number < count:
            raise ValueError(f'shard takes I/N with I from 0 to N - 1, got {number}/{count}')
        outputs = Outputs(self.out_dir, [self.path], overwrite)
        outputs.check(*self.files)
        tiles = self.grid.shard(number, count)
        with _name_in_errors(self.folder), Part(self.folder, (number, count), tiles, self.settings) as part:
            if part.is_merged():
                if resume:
                    part.require_same()
                    if all(map(outputs.is_own, self.files)):
                        return Finished(Progress(len(tiles), len(tiles), 0), self.files)
                overwrite = True
            part.begin(resume, overwrite and not resume)
            report(Progress(part.done, len(tiles), part.blanks))
            for blocks, is_blank in self._predict(tiles[part.done :]):
                part.add(blocks, is_blank)
                report(Progress(part.done, len(tiles), part.blanks))
            progress = Progress(part.done, len(tiles), part.blanks)
        if shard is not None:
            return Finished(progress, [])
        return Finished(progress, self.merge(overwrite))

    def merge(self, overwrite: bool = False) -> list[Path]:
        """Write the results of all shards, and delete their tiles.

        Raises:
            ValueError: if a shard is missing or unfinished, or of another model or other settings.
            FileExistsError, OSError: see `run`.
        """
        outputs = Outputs(self.out_dir, [self.path], overwrite)
        outputs.check(*self.files)
        parts = parts_of(self.folder, self.grid, self.settings)
        with ExitStack() as stack:
            for part in parts:
                stack.enter_context(part)
            (self._write_labels if self.segments else self._write_objects)(outputs, parts)
            for part in parts:
                part.mark_merged()
        return self.files

    def _predict(self, tiles: range) -> Iterator[tuple[list[ResultBlock], bool]]:
        """Yield the blocks of each tile, and whether the tile was skipped."""
        if not tiles:
            return
        if not self.segments:
            for index in tiles:
                pixels = self._read(index)
                yield ([], True) if pixels is None else ([ResultBlock(index, self._objects(index, pixels))], False)
            return
        with tempfile.TemporaryFile(dir=self.folder) as scratch:
            blender = Blender(self.grid, len(self.classes), scratch)
            for index in range(Blender.warm_up(self.grid, tiles[0]), tiles.stop):
                pixels = self._read(index)
                scores_KHW = None if pixels is None else self._scores(index, pixels)
                blended = blender.add(index, scores_KHW)
                if index in tiles:
                    yield self._labels(index, blended), pixels is None

    def _read(self, index: int) -> Optional[NDArray[Any]]:
        """Return the pixels of a tile; None for a skipped tile."""
        pixels = self.picture.read(self.grid.window(index))
        if self.skip_blank is not None:
            ranges = (cv2.minMaxLoc(channel)[:2] for channel in cv2.split(pixels))
            if all(most - least <= self.skip_blank for least, most in ranges):
                return None
        return pixels

    def _frame(self, pixels: NDArray[Any]) -> Frame:
        height, width = pixels.shape[:2]
        return Frame(Medium(self.path, self.path.stem, False), 0, pixels, (height, width))

    def _scores(self, index: int, pixels: NDArray[Any]) -> NDArray[Any]:
        scores_KHW = self.predictor.scores(self.predictor.prepare(self._frame(pixels)))
        expected = (len(self.classes), *self.grid.window(index).size)
        if scores_KHW.shape != expected:
            raise ValueError(f'the scores of a tile must have the shape {expected}, got {scores_KHW.shape}')
        return scores_KHW

    def _labels(self, index: int, blended: Optional[tuple[NDArray[Any], NDArray[Any]]]) -> list[ResultBlock]:
        if blended is None:
            return [ResultBlock(number, self._empty_block) for number, _ in self.grid.blocks(index)]
        dtype = writers.label_type(len(self.classes))
        sums_KHW, has_scores_HW = blended
        labels_HW = np.where(has_scores_HW, sums_KHW.argmax(0), np.iinfo(dtype).max).astype(dtype)
        cell = self.grid.cell(index)
        return [
            ResultBlock(number, writers.encode_labels(labels_HW[window.within(cell)], self.grid.step))
            for number, window in self.grid.blocks(index)
        ]

    @cached_property
    def _empty_block(self) -> bytes:
        """Return the block of labels of skipped tiles."""
        return writers.encode_labels(np.zeros((0, 0), writers.label_type(len(self.classes))), self.grid.step)

    def _objects(self, index: int, pixels: NDArray[Any]) -> bytes:
        (sample,) = self.predictor.predict([self.predictor.prepare(self._frame(pixels))])
        objects = list(self._objects_of(sample, self.grid.window(index)))
        return writers.encode_objects(mark_cut(objects, self.grid, index))

    def _objects_of(self, sample: BaseDataElement, window: Window) -> Iterator[Object]:
        if 'pred_panoptic_seg' in sample or 'bboxes' not in sample.get('pred_instances', ()):
            raise ValueError('tiles are for segmentors and for detectors with boxes; the model is of another kind')
        instances = sample.pred_instances.cpu().numpy()
        for number in np.flatnonzero(instances.scores >= self.score_thr):
            x1, y1, x2, y2 = map(float, instances.bboxes[number])
            runs = None
            if 'masks' in instances:
                runs = runs_of(np.asarray(instances.masks[number], bool), window, self.grid.size[0])
            yield Object(
                (x1 + window.left, y1 + window.top, x2 + window.left, y2 + window.top),
                float(instances.scores[number]), int(instances.labels[number]), runs,
            )  # fmt: skip

    def _write_labels(self, outputs: Outputs, parts: list[Part]) -> None:
        count = self.grid.vertical.blocks * self.grid.horizontal.blocks
        places = np.zeros((count, 3), np.int64)  # part, offset, length
        for index, part in enumerate(parts):
            for done in part.records():
                for number, data, offset in done.blocks:
                    places[number] = index, offset, len(data)
        with ExitStack() as stack:
            files = [stack.enter_context(open(part.path, 'rb')) for part in parts]

            def block_at(part: int, offset: int, length: int) -> bytes:
                files[part].seek(offset)
                return files[part].read(length)

            blocks = (block_at(*place.tolist()) for place in places)
            outputs.write_by(
                self.files[0],
                lambda partial: writers.write_labels(
                    partial, self.grid, blocks, self.predictor.meta['palette'], self.classes, self.picture.coordinates,
                ),
            )  # fmt: skip

    def _write_objects(self, outputs: Outputs, parts: list[Part]) -> None:
        ids = category_ids_of(self.classes)
        lines, images, *geojson = self.files
        height, width = self.grid.size
        image = dict(id=1, file_name=str(self.path), height=height, width=width)
        categories = [dict(id=number, name=name) for number, name in zip(ids, self.classes)]
        outputs.write(images, json.dumps(dict(images=[image], categories=categories)).encode())
        outputs.write_by(
            lines, lambda partial: writers.write_objects(partial, self._merged(parts), self.grid.size, ids)
        )
        coordinates = self.picture.coordinates
        if coordinates is not None:
            place = coordinates
            outputs.write_by(
                geojson[0],
                lambda partial: writers.write_geojson(partial, self._merged(parts), height, place, self.classes),
            )

    def _merged(self, parts: list[Part]) -> Iterator[Object]:
        merger = Merger(self.grid)
        for part in parts:
            for done in part.records():
                objects = [item for block in done.blocks for item in writers.decode_objects(block.data)]
                yield from merger.add(done.tile, objects)


@contextmanager
def _name_in_errors(path: Path) -> Iterator[None]:
    """Add `path` to an error of the system without the name of a file, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def infer_tiled(
    predictor: Predictor,
    path: Union[str, Path],
    out_dir: Union[str, Path],
    *,
    shard: Optional[tuple[int, int]] = None,
    resume: bool = False,
    overwrite: bool = False,
    report: Callable[[Progress], object] = lambda progress: None,
    **settings: Any,
) -> Finished:
    """Run a detector or segmentor on a picture larger than memory.

    Args and errors: see `TiledInference` (`settings`) and `TiledInference.run`.
    """
    return TiledInference(predictor, path, out_dir, **settings).run(shard, resume, overwrite, report)
