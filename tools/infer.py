"""Run a trained detector or segmentor on pictures and videos; draw what it sees, and write it as data.

python tools/infer.py INPUT [INPUT ...] CONFIG CKPT [--out-dir D] [--device cuda:0] [--score-thr 0.3]
    [--batch-size N] [--backbone swin-t] [--cfg-options K=V ...] [--unsafe-load]

An input is a picture, a video, a folder or a pattern in quotes. Written are

    D/overlays/NAME.jpg    the picture with its predictions, NAME.mp4 for a video
    D/results.json         of a detector: COCO results; D/images.json says which image and category the ids are
    D/labels/NAME.png      of a segmentor: the class of each pixel, numbered from 0

Exit status: 0 if every input was read; 1 if a file could not be read, which is said and skipped, or if an argument
is wrong.
"""

import argparse
import time
from pathlib import Path

import torch
from command_line import add_config_arguments, add_unsafe_load, run, stop_on_user_errors
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from swin_backbone.openmmlab import media, runtime
from swin_backbone.openmmlab.inference import Predictor, Results


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('inputs', nargs='+', metavar='INPUT', help='picture, video, folder, or pattern in quotes')
    parser.add_argument('config', help='path of the config, or mmdet::..., mmseg::..., swin_backbone::...')
    parser.add_argument('checkpoint', help='checkpoint of the whole model')
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'), metavar='D', help='default: outputs')
    parser.add_argument(
        '--device', default='cuda:0' if torch.cuda.is_available() else 'cpu', help='default: CUDA if there is one'
    )
    parser.add_argument('--score-thr', type=float, default=0.3, metavar='S', help='least score (default: 0.3)')
    parser.add_argument('--batch-size', type=int, default=1, metavar='N', help='pictures at a time (default: 1)')
    add_config_arguments(parser)
    add_unsafe_load(parser)
    args = parser.parse_args()
    if args.batch_size < 1 or not 0 <= args.score_thr <= 1:
        parser.error('--batch-size takes at least 1, --score-thr a number from 0 to 1')
    return args


def main() -> int:
    args = parse_args()
    console = Console(stderr=True)
    with stop_on_user_errors():
        found = media.find_media(args.inputs)
        cfg = runtime.load_config(
            args.config, None, args.cfg_options, 'none', args.backbone, args.recipe, with_data=False
        )
        predictor = Predictor(cfg, args.checkpoint, args.device, args.unsafe_load)
    results = Results(args.out_dir, predictor, args.score_thr)
    unreadable = []
    batch: list[media.Frame] = []
    begin = time.monotonic()
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    with Progress(*columns, console=console) as progress:
        task = progress.add_task('predicting', total=sum(map(media.count_frames, found)))

        def flush() -> None:
            for frame, sample in zip(batch, predictor.predict(batch) if batch else ()):
                results.add(frame, sample)
                progress.advance(task)
            batch.clear()

        for medium in found:
            try:
                for frame in media.read_frames(medium):
                    batch.append(frame)
                    if len(batch) == args.batch_size:
                        flush()
            except OSError as error:
                unreadable.append(medium.path)
                console.print(f'skipped: {error}', style='red', markup=False, highlight=False)
                progress.advance(task, 0 if medium.is_video else 1)
        flush()
    results.close()
    seconds = time.monotonic() - begin
    seen = f'{len(results.objects)} objects, ' if predictor.scope == 'mmdet' else ''
    print(
        f'{len(results.images)} pictures and frames of {len(found) - len(unreadable)} files in {seconds:.1f} s, {seen}'
        f'{len(unreadable)} files unreadable; see {args.out_dir}'
    )
    return 1 if unreadable else 0


if __name__ == '__main__':
    run(main)
