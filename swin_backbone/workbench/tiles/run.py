"""Predict a picture larger than memory, tile by tile."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import cv2
import numpy as np
from numpy.typing import NDArray

from ...outputs import check_outputs, claim_folder
from ...whole_files import write_whole, write_whole_by
from ..data.media import make_frame
from ..predict.prediction import find_category_ids
from ..predict.predictor import Predictor
from ..predict.thresholds import ScoreThr, choose_score_thr, list_thresholds
from . import writers
from .blend import Blender
from .finished import FinishedTiles
from .grid import Grid, choose_overlap
from .objects import Merger, Object, find_runs, mark_cut
from .readers import compute_digest, open_picture

SMALLEST_OVERLAP = 32  # pixels, of a detector: the parts of a cut object are matched within the overlap


class TileCounts(NamedTuple):
    """Numbers of tiles of a run or shard: done, of total; and blank ones, which this run skipped."""

    done: int
    total: int
    blank: int


class TiledResult(NamedTuple):
    """Tiles at the end of a run or shard, and the written files; a shard writes none."""

    counts: TileCounts
    files: list[Path]


class TiledInference:
    """Inference of a detector or segmentor on a large picture.

    Args:
        predictor: predictor of a checkpoint or an exported folder.
        path: path of the picture; see `open_picture`.
        out_dir: folder of the results. A segmentor writes `labels/NAME.tif`; a detector writes `objects/NAME.jsonl`,
            `objects/NAME.images.json` and, for a picture with coordinates, `objects/NAME.geojson`. `tiles/NAME/` has
            the finished tiles.
        tile: side of a tile, in pixels.
        overlap: overlap of neighbouring tiles, in pixels, at most half a tile. None: see `choose_overlap`.
        level: level of a pyramid; 0 has all pixels.
        skip_blank: skip tiles in which each channel varies by at most this number. None: skip no tile.
        score_thr: lowest score of a written object, see `choose_score_thr`.

    Attributes:
        notes: sentences on reductions and on unaligned windows.

    Raises:
        OSError: if the picture cannot be read.
        ValueError: if an argument is out of range, or the model is a classifier.
    """

    def __init__(
        self,
        predictor: Predictor,
        path: Union[str, Path],
        out_dir: Union[str, Path],
        *,
        tile: int = 1024,
        overlap: Optional[int] = None,
        level: int = 0,
        skip_blank: Optional[int] = None,
        score_thr: Optional[ScoreThr] = None,
    ):
        self.predictor = predictor
        self.path, self.out_dir = Path(path), Path(out_dir)
        self.is_segmentor = predictor.scope == 'mmseg'
        overlap = choose_overlap(tile) if overlap is None else overlap
        if not self.is_segmentor and overlap < SMALLEST_OVERLAP:
            raise ValueError(f'overlap takes at least {SMALLEST_OVERLAP} pixels for a detector, got {overlap}')
        self.picture = open_picture(path, level)
        self.classes: list[str] = list(predictor.meta['classes'])
        height, width = predictor.compute_input_size((tile, tile))
        keeps_size = (height, width) == (tile, tile)
        alignment = predictor.window_alignment
        self.grid = Grid(self.picture.size, tile, overlap, alignment if keeps_size else 1)
        self.skip_blank = skip_blank
        self.score_thr = choose_score_thr(predictor, score_thr)
        self.notes = [*self.picture.notes]
        if not keeps_size:
            self.notes.append(f'the test pipeline resizes tiles of {tile}x{tile} to {width}x{height}')
        elif self.grid.stride % alignment and len(self.grid) > 1:
            self.notes.append(
                f'tiles start every {self.grid.stride} pixels, which is no multiple of {alignment}, the alignment '
                'of the windows: labels differ more from the labels of the whole picture'
            )
        settings = dict(
            format=2, picture=compute_digest(self.path), size=self.picture.size, level=level,
            model=predictor.fingerprint, tile=tile, overlap=overlap, skip_blank=skip_blank,
            score_thr=None if self.is_segmentor else self.score_thr,
        )  # fmt: skip
        self.finished_tiles = FinishedTiles(self.out_dir / 'tiles' / self.path.stem, settings)

    @property
    def files(self) -> list[Path]:
        """Return the paths of the results."""
        if self.is_segmentor:
            return [self.out_dir / 'labels' / f'{self.path.stem}.tif']
        suffixes = ['.jsonl', '.images.json', *(['.geojson'] if self.picture.crs else [])]
        return [self.out_dir / 'objects' / (self.path.stem + suffix) for suffix in suffixes]

    def run(
        self,
        shard: Optional[tuple[int, int]] = None,
        resume: bool = False,
        overwrite: bool = False,
        on_progress: Callable[[TileCounts], object] = lambda counts: None,
    ) -> TiledResult:
        """Predict all tiles and write the results, or predict the tiles of a shard.

        Args:
            shard: index of the shard, and number of shards; `merge` writes the results.
            resume: continue after the finished tiles.
            overwrite: replace results and finished tiles.
            on_progress: called after each tile.

        Raises:
            ValueError: for finished tiles of another model or of other settings; for any finished tiles without
                `resume` and `overwrite`; and if another process works on these tiles.
            FileExistsError: if a result would replace a file; see `check_outputs` and `claim_folder`.
            OSError: if the picture cannot be read, or the results cannot be written.
        """
        shard_index, num_shards = shard or (0, 1)
        # A resumed run may have been killed while it was writing results.
        overwrite_results = overwrite or (resume and self.finished_tiles.is_begun())
        self._claim_outputs(overwrite_results)
        tiles = self.grid.shard(shard_index, num_shards)
        with _name_in_errors(self.finished_tiles.folder), self.finished_tiles.lock(shard_index, num_shards):
            if resume and self.finished_tiles.is_merged() and all(path.exists() for path in self.files):
                return TiledResult(TileCounts(len(tiles), len(tiles), 0), self.files)
            done = self.finished_tiles.begin(tiles, resume, overwrite and not resume)
            blank = 0
            on_progress(TileCounts(done, len(tiles), blank))
            for index, packed, is_blank in self._predict(tiles[done:]):
                write_whole(self.finished_tiles.make_path(index), packed)
                done, blank = done + 1, blank + is_blank
                on_progress(TileCounts(done, len(tiles), blank))
            return TiledResult(TileCounts(done, len(tiles), blank), [] if shard else self.merge(overwrite_results))

    def merge(self, overwrite: bool = False) -> list[Path]:
        """Write the results of all shards, and delete their tiles.

        Raises:
            ValueError: if a tile is missing, or of another model or other settings.
            FileExistsError, OSError: see `run`.
        """
        self._claim_outputs(overwrite)
        self.finished_tiles.require_all(len(self.grid))
        with self.finished_tiles.lock_merge():
            self.finished_tiles.require_all(len(self.grid))  # another process may have merged in between
            if self.is_segmentor:
                self._write_labels()
            else:
                self._write_objects()
            self.finished_tiles.mark_merged()
        return self.files

    def _claim_outputs(self, overwrite: bool) -> None:
        check_outputs(*self.files, inputs=[self.path], overwrite=overwrite)
        claim_folder(self.files[0].parent, overwrite=True)

    def _predict(self, tiles: range) -> Iterator[tuple[int, bytes, bool]]:
        """Yield the index of each tile, the packed result, and whether the tile is skipped."""
        if not tiles:
            return
        if not self.is_segmentor:
            for index in tiles:
                pixels = self._read(index)
                objects = [] if pixels is None else mark_cut(self._iter_objects(index, pixels), self.grid, index)
                yield index, writers.pack_objects(objects), pixels is None
            return
        with tempfile.TemporaryFile(dir=self.finished_tiles.folder) as scratch:
            blender = Blender(self.grid, len(self.classes), scratch)
            for index in range(Blender.find_first_tile(self.grid, tiles[0]), tiles.stop):
                pixels = self._read(index)
                scores_KHW = None if pixels is None else self.predictor.compute_scores(self._prepare(pixels))
                blended = blender.add(index, scores_KHW)
                if index in tiles:
                    yield index, writers.pack_labels(self._choose_labels(index, blended)), pixels is None

    def _read(self, index: int) -> Optional[NDArray[Any]]:
        """Return the pixels of a tile; None for a skipped tile."""
        pixels = self.picture.read(self.grid.window(index))
        if self.skip_blank is not None:
            ranges = (cv2.minMaxLoc(channel)[:2] for channel in cv2.split(pixels))
            if all(high - low <= self.skip_blank for low, high in ranges):
                return None
        return pixels

    def _prepare(self, pixels: NDArray[Any]) -> dict[str, Any]:
        return self.predictor.preprocess(make_frame(pixels, self.path))

    def _choose_labels(self, index: int, blended: Optional[tuple[NDArray[Any], NDArray[Any]]]) -> NDArray[Any]:
        dtype = writers.choose_label_type(len(self.classes))
        labels_HW = np.full(self.grid.cell(index).size, np.iinfo(dtype).max, dtype)
        if blended is not None:
            sums_KHW, has_scores_HW = blended
            labels_HW[has_scores_HW] = sums_KHW.argmax(0)[has_scores_HW]
        return labels_HW

    def _iter_objects(self, index: int, pixels: NDArray[Any]) -> Iterator[Object]:
        (sample,) = self.predictor.predict([self._prepare(pixels)])
        if 'pred_panoptic_seg' in sample or 'bboxes' not in sample.get('pred_instances', ()):
            raise ValueError('tiles are for segmentors and for detectors with boxes; the model is of another kind')
        instances = sample.pred_instances.cpu().numpy()
        window = self.grid.window(index)
        thresholds = list_thresholds(self.score_thr, self.classes)
        for place in np.flatnonzero(instances.scores >= thresholds[instances.labels]):
            x1, y1, x2, y2 = map(float, instances.bboxes[place])
            runs = None
            if 'masks' in instances:
                runs = find_runs(np.asarray(instances.masks[place], bool), window, self.grid.size[0])
            yield Object(
                (x1 + window.left, y1 + window.top, x2 + window.left, y2 + window.top),
                float(instances.scores[place]), int(instances.labels[place]), runs,
            )  # fmt: skip

    def _write_labels(self) -> None:
        def blocks() -> Iterator[NDArray[Any]]:
            for index, window in self.grid.blocks():
                cell = self.grid.cell(index)
                labels_HW = writers.unpack_labels(
                    self.finished_tiles.make_path(index).read_bytes(), cell.size, len(self.classes)
                )
                yield labels_HW[window.within(cell)]

        palette = self.predictor.meta['palette']
        write_whole_by(
            self.files[0],
            lambda partial: writers.write_labels(partial, self.grid, blocks(), palette, self.classes, self.picture),
        )

    def _write_objects(self) -> None:
        ids = find_category_ids(self.predictor)
        lines, images, *geojson = self.files
        write_whole_by(lines, lambda partial: writers.write_objects(partial, self._iter_merged(), self.grid.size, ids))
        for path in geojson:
            write_whole_by(
                path, lambda partial: writers.write_geojson(partial, self._iter_merged(), self.picture, self.classes)
            )
        height, width = self.grid.size
        image = dict(id=1, file_name=str(self.path), height=height, width=width)
        categories = [dict(id=category_id, name=name) for category_id, name in zip(ids, self.classes)]
        write_whole(images, json.dumps(dict(images=[image], categories=categories)).encode())

    def _iter_merged(self) -> Iterator[Object]:
        merger = Merger(self.grid)
        for index in range(len(self.grid)):
            yield from merger.add(index, writers.unpack_objects(self.finished_tiles.make_path(index).read_bytes()))


@contextmanager
def _name_in_errors(path: Path) -> Iterator[None]:
    """Add `path` to an error of the system without the name of a file, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
