"""Run a trained detector or segmentor on a picture of any size, in tiles that overlap, with constant memory.

python tools/infer_tiles.py PICTURE CONFIG --weights CKPT
python tools/infer_tiles.py PICTURE DIR

PICTURE is a GeoTIFF, a slide, a TIFF, an OME-TIFF, a zarr, a JPEG or a PNG. DIR is a folder of tools/export.py. The
output is

  D/labels/NAME.tif     segmentor: a tiled TIFF, with the coordinates of the
                        picture
  D/objects/NAME.jsonl  detector: a COCO result on each line; the ids of
                        categories are in NAME.images.json; NAME.geojson, if
                        the picture has coordinates
  D/tiles/NAME/         finished tiles, for --resume and --merge
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from swin_backbone.commands import ANY_ERROR, PREDICTOR_OPTIONS, Parser, exit_with_message, make_predictor, run
from swin_backbone.options import ARGUMENTS, describe_unused_options, positive, whole_from


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('picture', metavar='PICTURE', help='a picture')
    parser.add(
        f'{PREDICTOR_OPTIONS} score_thr shard out_dir overwrite',
        config=dict(metavar='MODEL', help=f'{ARGUMENTS["config"]["help"]}; or a folder of tools/export.py'),
        device=dict(help='default: cuda:0 if there is a GPU; cpu for an exported folder'),
        threads=dict(help='threads of an exported model on a CPU'),
        shard=dict(help='run part I of N of the tiles, from 0; --merge follows'),
        out_dir=dict(default=Path('outputs'), help='folder to write (default: outputs)'),
    )
    parser.add_argument(
        '--tile', type=positive, default=1024, metavar='N', help='side of the tiles, in pixels (default: 1024)'
    )
    parser.add_argument(
        '--overlap',
        type=whole_from(0),
        metavar='N',
        help='overlap of neighbouring tiles, in pixels (default: 128, and at most half a tile)',
    )
    parser.add_argument(
        '--level',
        type=whole_from(0),
        default=0,
        metavar='L',
        help='level of a slide or pyramid (default: 0, the finest)',
    )
    parser.add_argument(
        '--skip-blank',
        type=whole_from(0, 255),
        nargs='?',
        const=0,
        metavar='N',
        help='skip tiles whose pixels differ by at most N in every channel (N without a value: 0)',
    )
    parser.add_argument(  # another option than that of a training
        '--resume', dest='resume_tiles', action='store_true', help='continue with the unfinished tiles'
    )
    parser.add_argument('--merge', action='store_true', help='write the results of all shards')
    args = parser.parse_args()
    if args.merge and (args.shard or args.resume_tiles):
        parser.error('--merge takes neither --shard nor --resume')
    return args


@contextmanager
def tile_bar(step: int) -> Iterator[Callable[[Any], None]]:
    """Yield a function that shows number, speed and remaining time of tiles.

    On a terminal a bar shows them, in a log a line per minute.
    """
    console = Console(stderr=True)
    printed = time.monotonic()
    columns = (TextColumn('tiles'), BarColumn(), MofNCompleteColumn(), TextColumn('{task.description}'))
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    task_id = bar.add_task('')
    (task,) = bar.tasks

    def show(counts: Any) -> None:
        nonlocal printed
        bar.update(task_id, completed=counts.done, total=counts.total)
        if not task.speed:
            return
        remaining = timedelta(seconds=round(task.time_remaining or 0))
        text = f'{task.speed:.2f} tiles/s, {task.speed * step**2 / 1e6:.1f} Mpx/s, {remaining} left'
        text += f', {counts.blank} blank' if counts.blank else ''
        bar.update(task_id, description=text)
        if not console.is_terminal and (time.monotonic() - printed > 60 or counts.done == counts.total):
            printed = time.monotonic()
            print(f'tiles {counts.done}/{counts.total}, {text}', file=sys.stderr, flush=True)

    with bar:
        yield show


def main() -> None:
    args = parse_args()
    with exit_with_message(ANY_ERROR, args.debug):
        from swin_backbone.workbench.tiles import TiledInference  # of the extra `tiles`

        args.out_dir.mkdir(parents=True, exist_ok=True)
        predictor = make_predictor(args)
        tiled = TiledInference(
            predictor, args.picture, args.out_dir, tile=args.tile, overlap=args.overlap,
            level=args.level, skip_blank=args.skip_blank, score_thr=args.score_thr,
        )  # fmt: skip
    for note in filter(None, (describe_unused_options(args, predictor.scope), *tiled.notes)):
        print(note, file=sys.stderr)
    start = time.monotonic()
    with exit_with_message(ANY_ERROR, args.debug):
        if args.merge:
            print(f'merged; see {", ".join(map(str, tiled.merge(args.overwrite)))}')
            return
        with tile_bar(tiled.grid.stride) as show:
            counts, files = tiled.run(args.shard, args.resume_tiles, args.overwrite, show)
    height, width = tiled.grid.size
    note = ' in this run' if args.resume_tiles else ''
    print(
        f'{counts.done} of {len(tiled.grid)} tiles of a picture of {width}x{height} pixels in '
        f'{time.monotonic() - start:.1f} s, {counts.blank} blank ones skipped{note}; see '
        f'{", ".join(map(str, files)) or f"{tiled.finished_tiles.folder}, and merge the shards by --merge"}'
    )


if __name__ == '__main__':
    run(main)
