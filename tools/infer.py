"""Run a trained detector, segmentor or classifier on pictures and videos; draw and write the predictions.

python tools/infer.py INPUT [INPUT ...] CONFIG --weights CKPT
python tools/infer.py INPUT [INPUT ...] DIR
python tools/infer.py PICTURE CONFIG --weights CKPT --tile 1024

DIR is a folder of tools/export.py. An input is a picture, a video, a folder or a pattern in quotes. The output is

  D/overlays/NAME.jpg  the picture with the predictions; NAME.mp4 of a video
  D/results.json       detector: COCO results, with the ids of pictures and
                       categories of D/images.json, or of --annotations;
                       classifier: class and score of each picture, and the
                       five best classes
  D/labels/NAME.png    segmentor: the class of each pixel, from --first-label;
                       16 bits for more than 256 classes
  D/panoptic/NAME.png  panoptic model: the segments in COCO's format, with
                       D/panoptic.json
  D/features/NAME.npz  with --save-features: the maps of the backbone

To limit memory, a picture above --max-pixels is reduced for the model and the overlay, with a line in the log. Boxes,
masks and labels are in pixels of the full picture.

--tile N cuts a picture of any size into tiles of N pixels, in constant memory: a GeoTIFF, a slide, a TIFF, an OME-TIFF,
a zarr, a JPEG or a PNG. The output is

  D/labels/NAME.tif     segmentor: a tiled TIFF, with the coordinates of the
                        picture
  D/objects/NAME.jsonl  detector: a COCO result on each line; the ids of
                        categories are in NAME.images.json; NAME.geojson, if
                        the picture has coordinates
  D/tiles/NAME/         finished tiles, for --resume and --merge

--shard I/N without --tile runs every Nth input from number I on, for arrays of jobs. The outputs are in D/I-of-N.

Inputs are never replaced, and other files only with --overwrite.

Exit status: 0 with results for every input; 1 if an input was skipped or cut short, or an argument is wrong; 130 after
Ctrl-C.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from swin_backbone.command_line import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, options_of, run
from swin_backbone.options import ARGUMENTS, positive, unused_options, whole

if TYPE_CHECKING:  # imported in functions, for a quick --help
    from swin_backbone.workbench.predict.predictor import Predictor

OF_TILES = ('overlap', 'level', 'skip_blank', 'resume', 'merge')
OF_SEVERAL = ('batch', 'max_pixels', 'ids_of', 'first_label', 'save_features')
OF_CONFIG = ('weights', 'backbone', 'at', 'recipe', 'cfg_options', 'allow_missing', 'unsafe_load')
MAX_PIXELS = 4096 * 2160  # a 4K frame; about 3 GB


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('inputs', nargs='+', metavar='INPUT', help='picture, video, folder or pattern in quotes')
    parser.add(
        f'{JOB_OPTIONS} annotations batch weights amp precision compile score_thr device threads first_label out_dir '
        'overwrite allow_missing unsafe_load timeout',
        config=dict(metavar='MODEL', help=f'{ARGUMENTS["config"]["help"]}; or a folder of tools/export.py'),
        annotations=dict(dest='ids_of', help='COCO JSON with the ids of pictures and categories for results.json'),
        batch=dict(default=1, help='pictures at a time (default: 1)'),
        device=dict(help='default: cuda:0 if there is a GPU; cpu for an exported folder'),
        threads=dict(help='threads of an exported model on a CPU'),
        out_dir=dict(default=Path('outputs'), help='folder to write (default: outputs)'),
    )
    parser.add_argument(
        '--max-pixels',
        type=positive,
        default=MAX_PIXELS,
        metavar='N',
        help=f'reduce larger pictures to N pixels (default: {MAX_PIXELS})',
    )
    parser.add_argument(
        '--save-features', action='store_true', help='write the maps of the backbone to D/features/NAME.npz'
    )
    tiles = parser.add_argument_group('pictures larger than memory')
    tiles.add_argument('--tile', type=positive, metavar='N', help='side of the tiles, in pixels')
    tiles.add_argument(
        '--overlap',
        type=whole(0),
        metavar='N',
        help='overlap of neighbouring tiles, in pixels (default: 128, and at most half a tile)',
    )
    tiles.add_argument(
        '--level', type=whole(0), metavar='L', help='level of a slide or pyramid (default: 0, the finest)'
    )
    tiles.add_argument(
        '--skip-blank',
        type=whole(0, 255),
        nargs='?',
        const=0,
        metavar='N',
        help='skip tiles whose pixels differ by at most N in every channel (N without a value: 0)',
    )
    tiles.add_argument('--resume', action='store_true', help='continue with the unfinished tiles')
    tiles.add_argument(
        '--shard',
        type=shard,
        metavar='I/N',
        help='run part I of N, from 0: of the tiles, then --merge; without --tile, of the inputs',
    )
    tiles.add_argument('--merge', action='store_true', help='write the results of all shards')
    args = parser.parse_args()
    from swin_backbone.workbench.export.predictor import is_exported

    if is_exported(args.config):
        parser.refuse(args, OF_CONFIG, f'takes a config, got the exported folder {args.config}')
    elif not args.weights:
        parser.error(f'give INPUT... CONFIG --weights CKPT, or INPUT... DIR of tools/export.py, got {args.config}')
    if args.tile is None:
        parser.refuse(args, OF_TILES, 'takes --tile')
        return args
    if len(args.inputs) > 1:
        parser.error(f'--tile takes one PICTURE, got {len(args.inputs)}')
    parser.refuse(args, OF_SEVERAL, 'is not used with --tile')
    if args.merge:
        parser.refuse(args, ('shard', 'resume'), 'is not used with --merge')
    return args


def shard(text: str) -> tuple[int, int]:
    """Read the value of `--shard`, I/N."""
    number, _, of = text.partition('/')
    if not (number.isdecimal() and of.isdecimal() and int(number) < int(of)):
        raise argparse.ArgumentTypeError(f'it takes I/N with I from 0 to N - 1, got {text[:40]!r}')
    return int(number), int(of)


def make_predictor(args: argparse.Namespace) -> 'Predictor':
    """Return the predictor of a config and a checkpoint, or of an exported folder."""
    from swin_backbone.workbench.job import open_exported, open_predictor

    if args.weights is None:
        return open_exported(args.config, options_of(args), args.batch)
    of_no_training = argparse.Namespace(**{**vars(args), 'batch': None})  # --batch is that of the predictions
    return open_predictor(make_job(of_no_training), args.weights)


def infer_tiles(args: argparse.Namespace) -> int:
    """Predict for one picture in tiles."""
    with exit_with_message(ANY_ERROR, args.debug):
        from swin_backbone.workbench.tiles import TiledInference  # of the extra `tiles`

        args.out_dir.mkdir(parents=True, exist_ok=True)
        predictor = make_predictor(args)
        tiled = TiledInference(
            predictor, args.inputs[0], args.out_dir, tile=args.tile, overlap=args.overlap,
            level=args.level or 0, skip_blank=args.skip_blank, score_thr=args.score_thr,
        )  # fmt: skip
    for note in filter(None, (unused_options(args, predictor.scope), *tiled.notes)):
        print(note, file=sys.stderr)
    begin = time.monotonic()
    with exit_with_message(ANY_ERROR, args.debug):
        if args.merge:
            files = tiled.merge(args.overwrite)
            print(f'merged; see {", ".join(map(str, files))}')
            return 0
        with tile_bar(tiled.grid.stride) as show:
            progress, files = tiled.run(args.shard, args.resume, args.overwrite, show)
    height, width = tiled.grid.size
    print(
        f'{progress.done} of {len(tiled.grid)} tiles of a picture of {width}x{height} pixels in '
        f'{time.monotonic() - begin:.1f} s, {progress.blank} of them blank and skipped; see '
        f'{", ".join(map(str, files)) or f"{tiled.finished_tiles.folder}, and merge the shards by --merge"}'
    )
    return 0


@contextmanager
def tile_bar(step: int) -> Iterator[Callable[[Any], None]]:
    """Yield a function that shows number, speed and remaining time of tiles.

    On a terminal a bar shows them, in a log a line per minute.
    """
    console, printed = Console(stderr=True), time.monotonic()
    columns = (TextColumn('tiles'), BarColumn(), MofNCompleteColumn(), TextColumn('{task.description}'))
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    number = bar.add_task('')
    (task,) = bar.tasks

    def show(progress: Any) -> None:
        nonlocal printed
        bar.update(number, completed=progress.done, total=progress.total)
        if not task.speed:
            return
        left = timedelta(seconds=round(task.time_remaining or 0))
        text = f'{task.speed:.2f} tiles/s, {task.speed * step**2 / 1e6:.1f} Mpx/s, {left} left'
        text += f', {progress.blank} blank' if progress.blank else ''
        bar.update(number, description=text)
        if not console.is_terminal and (time.monotonic() - printed > 60 or progress.done == progress.total):
            printed = time.monotonic()
            print(f'tiles {progress.done}/{progress.total}, {text}', file=sys.stderr, flush=True)

    with bar:
        yield show


def main() -> int:
    args = parse_args()
    if args.tile is not None:
        return infer_tiles(args)
    from swin_backbone.workbench.data.media import find_media
    from swin_backbone.workbench.pictures.colours import PALETTE_SIZE
    from swin_backbone.workbench.predict.inference import Inference
    from swin_backbone.workbench.predict.results import ResultsWriter

    with exit_with_message(ANY_ERROR, args.debug):
        inputs = find_media(args.inputs)
        if args.shard:
            number, of = args.shard
            inputs = inputs[number::of]
            args.out_dir /= f'{number}-of-{of}'
        predictor = make_predictor(args)
        results = ResultsWriter(
            args.out_dir, predictor, args.score_thr, args.first_label, args.ids_of, args.save_features
        )
        read = [args.config, *filter(None, (args.weights, args.ids_of))]
        results.claim_outputs(inputs, read, args.overwrite)
    if unused := unused_options(args, predictor.scope, *(['segmentor'] if results.is_panoptic else [])):
        print(unused, file=sys.stderr)
    begin = time.monotonic()
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    with exit_with_message((OSError,), args.debug), progress:
        inference = Inference(predictor, results, progress, args.max_pixels, args.batch, args.debug)
        before = signal.signal(signal.SIGINT, inference.stop)
        try:
            inference.run(inputs)
        finally:
            signal.signal(signal.SIGINT, before)
    seconds, bad = time.monotonic() - begin, {*inference.unreadable, *inference.failed}
    seen = f'{len(results.objects)} objects, ' if predictor.scope == 'mmdet' else ''
    if predictor.scope == 'mmpretrain':
        for picture in results.objects:
            print(f'{picture["file_name"]}: {picture["class"]} {picture["score"]:.3f}')
    print(
        f'{len(results.images)} pictures and frames of {len(inputs) - len(bad)} files in {seconds:.1f} s, {seen}'
        f'{len(inference.unreadable)} files unreadable; see {args.out_dir}'
    )
    if inference.failed:
        print(f'{len(inference.failed)} files failed in the model, its pipeline or the writing of results')
    if predictor.scope == 'mmseg' and results.images and len(predictor.meta['classes']) <= PALETTE_SIZE:
        print('labels/*.png have the classes as values with a palette: Pillow reads the classes, OpenCV the colours')
    if predictor.scope == 'mmdet' and not args.ids_of:
        print('results.json has the ids of images.json; --annotations FILE takes the ids of your own COCO JSON')
    if bad:
        return 1
    return 128 + signal.SIGINT if inference.is_stopped else 0


if __name__ == '__main__':
    run(main)
