"""Run a trained detector, segmentor or classifier on pictures and videos; draw what it sees, and write it as data.

python tools/infer.py INPUT [INPUT ...] CONFIG CKPT [--out-dir D] [--device cuda:0] [--score-thr 0.3]
    [--batch-size N] [--max-pixels N] [--backbone swin-t] [--cfg-options K=V ...] [--unsafe-load]
    [--allow-missing]
python tools/infer.py INPUT [INPUT ...] DIR [--out-dir D] [--device cpu] [--threads N] [--score-thr 0.3]
    [--batch-size N] [--max-pixels N]

DIR is what tools/export.py made of a config and a checkpoint. An input is a picture, a video, a folder or a pattern in
quotes. Written are

    D/overlays/NAME.jpg    the picture with its predictions, NAME.mp4 for a video
    D/results.json         of a detector: COCO results; D/images.json says which image and category the ids are
                           of a classifier: class and score of each picture, which are printed too, and the five best
    D/labels/NAME.png      of a segmentor: the class of each pixel, numbered from 0

A picture with more pixels than --max-pixels is reduced for the model and the overlay, and a line says so; this limits
the memory. Boxes, masks and labels are written in the pixels of the picture itself.

Exit status: 0 if every input was read; 1 if a file could not be read, which is said and skipped, or if an argument
is wrong.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from command_line import (
    BUILD_ERRORS,
    add_allow_missing,
    add_config_arguments,
    add_unsafe_load,
    positive,
    run,
    stop_on_user_errors,
)
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from swin_backbone.deploy.predictor import ExportedPredictor, is_exported
from swin_backbone.openmmlab import media, runtime
from swin_backbone.openmmlab.inference import Predictor, Results
from swin_backbone.openmmlab.places import make_folder

MAX_PIXELS = 4096 * 2160  # a 4K frame; about 3 GB


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'inputs',
        nargs='+',
        metavar='INPUT',
        help='picture, video, folder, or pattern in quotes; behind all of them '
        'the config (a path, or mmdet::..., mmseg::..., swin_backbone::...) and the checkpoint, or an exported folder',
    )
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'), metavar='D', help='default: outputs')
    parser.add_argument('--device', help='default: CUDA if there is one; the CPU for an exported folder')
    parser.add_argument('--threads', type=positive, metavar='N', help='threads of an exported model on a CPU')
    parser.add_argument(
        '--score-thr', type=float, default=0.3, metavar='S', help='leave out boxes with lower scores (default: 0.3)'
    )
    parser.add_argument('--batch-size', type=positive, default=1, metavar='N', help='pictures at a time (default: 1)')
    parser.add_argument(
        '--max-pixels',
        type=positive,
        default=MAX_PIXELS,
        metavar='N',
        help=f'reduce larger pictures to N pixels (default: {MAX_PIXELS})',
    )
    add_config_arguments(parser)
    add_unsafe_load(parser)
    add_allow_missing(parser)
    args = parser.parse_args()
    if not 0 <= args.score_thr <= 1:
        parser.error(f'--score-thr takes a number from 0 to 1, got {args.score_thr}')
    behind = 1 if is_exported(args.inputs[-1]) else 2
    if len(args.inputs) <= behind:
        parser.error('it takes INPUT CONFIG CKPT, or INPUT DIR with a folder that tools/export.py made')
    args.inputs, args.model = args.inputs[:-behind], args.inputs[-behind:]
    return args


def open_predictor(args: argparse.Namespace) -> Predictor:
    """Of a config and a checkpoint, or of an exported folder."""
    if len(args.model) == 1:
        return ExportedPredictor(args.model[0], args.device or 'cpu', args.threads, args.batch_size)
    config, checkpoint = args.model
    cfg = runtime.load_config(
        config, None, args.cfg_options, 'none', args.backbone, args.recipe, with_data=False, at=args.at
    )
    device = args.device or ('cuda:0' if torch.cuda.is_available() else 'cpu')
    return Predictor(cfg, checkpoint, device, args.unsafe_load, args.allow_missing)


def reduced(frame: media.Frame) -> str:
    """What is done with a picture of too many pixels, for the log."""
    (height, width), seen = frame.size, frame.pixels.shape
    return f'{width}x{height} pixels are seen and drawn as {seen[1]}x{seen[0]}; --max-pixels takes more'


def main() -> int:
    args = parse_args()
    console = Console(stderr=True)
    with stop_on_user_errors(BUILD_ERRORS, args.traceback):
        found = media.find_media(args.inputs)
        make_folder(args.out_dir, '--out-dir')
        predictor = open_predictor(args)
    results = Results(args.out_dir, predictor, args.score_thr)
    unreadable = []
    batch: list[tuple[media.Frame, dict]] = []
    begin = time.monotonic()
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    with stop_on_user_errors((OSError,), args.traceback), Progress(*columns, console=console) as progress:
        task = progress.add_task('predicting', total=sum(map(media.count_frames, found)))

        def say(text: str, style: str) -> None:
            console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

        def prepared(medium: media.Medium) -> Iterator[tuple[media.Frame, dict]]:
            try:
                for frame in media.read_frames(medium, args.max_pixels):
                    if frame.number == 0 and frame.size != frame.pixels.shape[:2]:
                        say(f'{medium.path}: {reduced(frame)}', 'yellow')
                    yield frame, predictor.prepare(frame)
            except OSError as error:
                unreadable.append(medium.path)
                say(f'skipped: {error}', 'red')
                progress.advance(task, 0 if medium.is_video else 1)

        def flush() -> None:
            samples = predictor.predict([item for _, item in batch]) if batch else []
            for (frame, _), sample in zip(batch, samples):
                results.add(frame, sample)
                progress.advance(task)
            batch.clear()

        try:
            for medium in found:
                progress.update(task, description=escape(medium.name))
                for frame, item in prepared(medium):
                    if batch and not predictor.can_batch(batch[-1][1], item):
                        flush()
                    batch.append((frame, item))
                    if len(batch) == args.batch_size:
                        flush()
            flush()
        finally:  # whatever happens, what was predicted is written
            results.close()
    seconds = time.monotonic() - begin
    seen = f'{len(results.objects)} objects, ' if predictor.scope == 'mmdet' else ''
    if predictor.scope == 'mmpretrain':
        for found_class in results.objects:
            print(f'{found_class["file_name"]}: {found_class["class"]} {found_class["score"]:.3f}')
    print(
        f'{len(results.images)} pictures and frames of {len(found) - len(unreadable)} files in {seconds:.1f} s, {seen}'
        f'{len(unreadable)} files unreadable; see {args.out_dir}'
    )
    return 1 if unreadable else 0


if __name__ == '__main__':
    run(main)
