"""Tiled runs: killed and resumed, in shards, refused, and in memory that does not grow with the picture."""

import json
import multiprocessing
import re
import resource
import shutil
import signal
import tracemalloc
from functools import partial

import cv2
import numpy as np
import pytest
from helpers import edited_json
from helpers.openmmlab.oracles import Detector, Segmentor, noise, scene

pytest.importorskip('swin_backbone.workbench.tiles', reason='the extra tiles is not installed')

import tifffile

from swin_backbone.workbench.tiles import TiledInference, finished, writers
from swin_backbone.workbench.tiles.grid import Grid

SETTINGS = dict(tile=96, overlap=32)


@pytest.fixture(scope='module')
def picture(tmp_path_factory):
    """Write a picture of 5 x 6 tiles, full of objects."""
    path = tmp_path_factory.mktemp('pictures') / 'sc\u00e8ne.png'
    pixels = np.where((made := scene((330, 380), 25, largest=25)[0]) == 90, noise((330, 380)) // 2, made)
    cv2.imencode('.png', pixels)[1].tofile(path)
    return path


def results(out_dir):
    """Return the bytes of the results of a run, without the manifest."""
    outcome = {path.relative_to(out_dir): path.read_bytes() for path in out_dir.rglob('*') if path.is_file()}
    return {str(path): data for path, data in outcome.items() if path.parts[0] != 'tiles' and path.name[0] != '.'}


@pytest.fixture(scope='module', params=[Segmentor, Detector])
def kind(request, tmp_path_factory, picture):
    """Return a model, and the results of an uninterrupted run."""
    out = tmp_path_factory.mktemp('whole')
    finished = TiledInference(request.param(), picture, out, **SETTINGS).run()
    assert finished.counts == (30, 30, 0)
    assert all(path.is_file() for path in finished.files)
    left = {path.name for path in (out / 'tiles' / picture.stem).iterdir()}
    assert left == {'settings.json', 'merged', '0-of-1.lock', 'merge.lock'}
    return request.param, results(out)


def die(kind, picture, out, at, resume):
    TiledInference(kind(dies_at=at), picture, out, **SETTINGS).run(resume=resume)


def test_killed_and_resumed_it_writes_the_same_bytes(record_fault, tmp_path, picture, kind):
    kind, expected = kind
    for turn, at in enumerate((5, 9, 11)):
        process = multiprocessing.get_context('fork').Process(
            target=die, args=(kind, picture, tmp_path, at, bool(turn))
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    (tmp_path / 'tiles' / picture.stem / '.partial-x.tile').write_bytes(b'half of a tile')  # like a kill during a write
    shown = []
    TiledInference(kind(), picture, tmp_path, **SETTINGS).run(resume=True, on_progress=shown.append)
    assert results(tmp_path) == expected
    assert [progress.done for progress in shown] == list(range(shown[0].done, 31))
    assert shown[0].done >= 12
    record_fault('tile_kills', 3)


@pytest.mark.parametrize(
    'shards', [[(number, 40) for number in (*range(20, 40), *range(20))], [(3, 4), (0, 2), (2, 4)]],
    ids=['40', 'of two divisions'],
)  # fmt: skip
def test_shards_that_are_merged_have_the_same_bytes(tmp_path, picture, kind, shards):
    kind, expected = kind
    for shard in shards:
        assert not results(tmp_path)
        TiledInference(kind(), picture, tmp_path, **SETTINGS).run(shard=shard)
    TiledInference(kind(), picture, tmp_path, **SETTINGS).merge()
    assert results(tmp_path) == expected


def test_another_model_or_setting_is_refused(record_fault, tmp_path, picture):
    TiledInference(Segmentor(), picture, tmp_path, **SETTINGS).run(shard=(0, 2))
    changed = tmp_path / picture.name
    cv2.imencode('.png', noise((330, 380), 1))[1].tofile(changed)
    (tmp_path / 'later').mkdir()
    later = shutil.copy(picture, tmp_path / 'later')  # pixels in the middle of a large file may have changed
    others = [
        (Segmentor('other'), picture, {}, 'model'),
        (Segmentor(), changed, {}, 'picture'),
        (Segmentor(), later, {}, 'picture'),
        (Segmentor(), picture, dict(tile=128), 'tile'),
        (Segmentor(), picture, dict(overlap=16), 'overlap'),
        (Segmentor(), picture, dict(skip_blank=0), 'skip_blank'),
        (Detector(), picture, {}, 'score_thr'),
    ]
    for predictor, path, settings, word in others:
        job = TiledInference(predictor, path, tmp_path, **dict(SETTINGS, **settings))
        for attempt in (partial(job.run, (0, 2)), partial(job.run, (0, 2), resume=True), job.merge):
            with pytest.raises(ValueError, match=f'was begun with .*{word}'):
                attempt()
            record_fault('tile_manifests')
    with pytest.raises(ValueError, match=r'--resume .* goes on, --overwrite'):
        TiledInference(Segmentor(), picture, tmp_path, **SETTINGS).run(shard=(0, 2))
    for number in range(2):  # the tiles of the first model are left out
        TiledInference(Segmentor('other'), picture, tmp_path, **SETTINGS).run(shard=(number, 2), overwrite=not number)
    merged = TiledInference(Segmentor('other'), picture, tmp_path, **SETTINGS)
    merged.merge()
    with pytest.raises(ValueError, match='were merged before, and are deleted'):
        merged.merge(overwrite=True)


def test_settings_of_another_format_are_refused(record_fault, tmp_path, picture):
    """A key that an older format lacks was a KeyError. Digests and thresholds by class were shown in part."""
    job = TiledInference(Detector(), picture, tmp_path, **SETTINGS)
    job.run(shard=(0, 2))
    with edited_json(job.finished_tiles.folder / 'settings.json') as settings:
        del settings['skip_blank'], settings['level']
        settings.update(format=1, model='1234', score_thr={'cat': 0.3})
    with pytest.raises(
        ValueError, match='was begun with format 1, not 2, level None, not 0, another model, another score_thr:'
    ):
        job.merge()
    record_fault('tile_manifests')


def test_two_processes_with_one_shard(record_fault, tmp_path, picture):
    job = TiledInference(Segmentor(), picture, tmp_path, **SETTINGS)
    messages = []

    def again(progress):
        for other in (job.run, partial(job.run, resume=True), job.merge):
            with pytest.raises(ValueError, match=r'another process works on|of 30 tiles') as caught:
                other()
            messages.append(str(caught.value))

    job.run(on_progress=lambda progress: again(progress) if progress.done == 3 else None)
    assert len(messages) == 3
    record_fault('tile_manifests', 3)


@pytest.mark.parametrize(
    ('running', 'refused', 'allowed'),
    [(None, [None, (0, 2), (1, 2), (39, 40)], []), ((1, 2), [None, (1, 2), (2, 3), (3, 4)], [(0, 2), (0, 3), (1, 4)])],
    ids=['all tiles', 'a half'],
)
def test_two_processes_have_no_common_tiles(tmp_path, picture, running, refused, allowed):
    """Else one merges and deletes the tiles of the other."""
    shards = []

    def begin_others(progress):
        if progress.done == 3:
            for shard in refused:
                with pytest.raises(ValueError, match='another process works on'):
                    TiledInference(Segmentor(), picture, tmp_path, **SETTINGS).run(shard=shard, resume=True)
            shards.extend(
                TiledInference(Segmentor(), picture, tmp_path, **SETTINGS).run(shard=shard, resume=True)
                for shard in allowed
            )

    finished = TiledInference(Segmentor(), picture, tmp_path, **SETTINGS).run(shard=running, on_progress=begin_others)
    assert len(shards) == len(allowed)
    assert finished.counts.done == finished.counts.total


def test_no_shard_begins_during_a_merge(tmp_path, picture, monkeypatch):
    monkeypatch.setattr(finished, 'MERGE_S', 0.1)
    job = TiledInference(Segmentor(), picture, tmp_path, **SETTINGS)
    with job.finished_tiles.lock_merge(), pytest.raises(ValueError, match=r'another process works on .*merge\.lock'):
        job.run((0, 2))


def test_the_same_command_again_and_resuming_what_is_finished(tmp_path, picture, kind):
    kind, expected = kind
    for settings in (SETTINGS, dict(tile=128, overlap=32), SETTINGS):
        TiledInference(kind(), picture, tmp_path, **settings).run(overwrite=True)
    with pytest.raises(FileExistsError, match='--overwrite'):
        TiledInference(kind(), picture, tmp_path, **SETTINGS).run()
    assert results(tmp_path) == expected
    predictor = kind()
    assert TiledInference(predictor, picture, tmp_path, **SETTINGS).run(resume=True).counts == (30, 30, 0)
    assert predictor.seen == 0
    with pytest.raises(ValueError, match='was begun with tile 96, not 128'):
        TiledInference(kind(), picture, tmp_path, tile=128, overlap=32).run(resume=True)


def test_a_file_of_the_user_stays(record_fault, tmp_path, picture):
    mine, predictor = tmp_path / 'labels' / f'{picture.stem}.tif', Segmentor()
    mine.parent.mkdir()
    mine.write_bytes(b'mine')
    with pytest.raises(FileExistsError, match='is there already'):
        TiledInference(predictor, picture, tmp_path, **SETTINGS).run()
    assert (mine.read_bytes(), predictor.seen) == (b'mine', 0)  # refused before any tile
    record_fault('outputs')


def run_limited(kind, picture, out, most_bytes, messages):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    try:
        TiledInference(kind(), picture, out, **SETTINGS).run(resume=True)
    except OSError as error:
        messages.put(str(error))
    else:
        messages.put('')


@pytest.mark.parametrize('most_bytes', [0, 700, 9000])
def test_a_full_disk(record_fault, tmp_path, picture, kind, most_bytes):
    """A limit of the file size stops a run. A run without limit continues after the finished tiles."""
    kind, expected = kind
    fork = multiprocessing.get_context('fork')
    messages = fork.Queue()
    process = fork.Process(target=run_limited, args=(kind, picture, tmp_path, most_bytes, messages))
    process.start()
    message = messages.get()
    process.join()
    if message or most_bytes < 1000:
        assert re.match(rf"\[Errno 27\] File too large: '{tmp_path}.+'", message)
        assert not results(tmp_path).keys() & expected.keys()
    TiledInference(kind(), picture, tmp_path, **SETTINGS).run(resume=True)
    assert results(tmp_path) == expected
    record_fault('full_disks')


def test_blank_tiles_are_skipped_and_said(tmp_path):
    pixels = np.full((400, 400, 3), 240, np.uint8)
    pixels[:100, :100] = noise((100, 100))
    pixels[300:, 300:] += np.random.default_rng(0).integers(0, 5, (100, 100, 3), np.uint8)  # noise of JPEG
    cv2.imwrite(str(tmp_path / 'a.png'), pixels)
    for skip, blank in ((None, 0), (0, 28), (8, 32)):
        out = tmp_path / str(skip)
        done = TiledInference(Segmentor(), tmp_path / 'a.png', out, skip_blank=skip, **SETTINGS).run()
        labels = tifffile.imread(done.files[0])
        if skip is None:
            whole = labels
        assert done.counts.blank == blank
        assert (labels == 255).any() == (skip is not None)
        assert (labels == whole)[labels != 255].mean() > 0.99  # next to a skipped tile, a single tile decides


@pytest.mark.parametrize('size', [(1, 1), (1, 700), (700, 1), (96, 97), (200, 170)])
def test_labels_are_those_of_the_whole_picture(tmp_path, size):
    """The overlap is four times the reach of a pixel's label to a side."""
    pixels = noise(size)
    cv2.imwrite(str(tmp_path / 'a.png'), pixels)
    for kind in (Segmentor, Detector):
        TiledInference(kind(), tmp_path / 'a.png', tmp_path, tile=144, overlap=64).run()
    whole = Segmentor().compute_scores(dict(inputs=pixels)).argmax(0)
    assert (tifffile.imread(tmp_path / 'labels' / 'a.tif') == whole).all()


def test_json_is_what_coco_reads(tmp_path, picture):
    from pycocotools.coco import COCO

    lines, images = TiledInference(Detector(), picture, tmp_path, **SETTINGS).run().files
    coco = COCO()
    coco.dataset = dict(json.loads(images.read_text()), annotations=[])
    coco.createIndex()
    outcome = [json.loads(line) for line in lines.read_text().splitlines()]
    loaded = coco.loadRes(outcome)
    masks = [loaded.annToMask(one).astype(bool) for one in loaded.anns.values()]
    expected = scene((330, 380), 25, largest=25)[1]
    assert len(masks) == len(expected)
    assert (np.sum(masks, 0) == np.sum(expected, 0)).all()


class Endless:
    """A picture computed window by window."""

    def __init__(self, size):
        self.size, self.notes, self.crs = size, (), None

    def read(self, window):
        tone = np.add.outer(np.arange(window.top, window.bottom), np.arange(window.left, window.right)) // 7 % 256
        return np.repeat(tone[..., None].astype(np.uint8), 3, 2)


@pytest.mark.parametrize('kind', [Segmentor, Detector])
def test_memory_does_not_depend_on_the_picture(tmp_path, monkeypatch, kind):
    """Compare memory peaks for three times the side and nine times the pixels."""
    from swin_backbone.workbench.tiles import run

    monkeypatch.setattr(run, 'compute_digest', lambda path: '')
    peaks = []
    for side in (300, 300, 900):  # the first run imports modules
        monkeypatch.setattr(run, 'open_picture', lambda path, level, side=side: Endless((side, side)))
        tracemalloc.start()
        TiledInference(kind(), f'{side}.png', tmp_path, tile=96, overlap=32).run(overwrite=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 100_000, peaks  # a row of tiles would need 400,000 more


def test_grid_of_the_labels_is_that_of_a_tiff(tmp_path):
    grid = Grid((100, 70), 96, 32)
    labels = np.arange(7000, dtype=np.uint16).reshape(100, 70)
    blocks = (labels[y : y + 64, x : x + 64] for y in (0, 64) for x in (0, 64))
    writers.write_labels(tmp_path / 'a.tif', grid, blocks, [], ['x'] * 300, Endless(grid.size))
    with tifffile.TiffFile(tmp_path / 'a.tif') as file:
        assert (file.asarray() == labels).all()
        assert file.pages.first.is_tiled
        assert file.pages.first.compression.name == 'ADOBE_DEFLATE'
        assert file.pages.first.nodata == 65535
