"""Run a trained detector, segmentor or classifier on pictures and videos; draw and write the predictions.

python tools/infer.py INPUT [INPUT ...] CONFIG --weights CKPT
python tools/infer.py INPUT [INPUT ...] DIR

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
masks and labels are in pixels of the full picture. tools/infer_tiles.py takes a picture of any size.

--shard I/N runs every Nth input from number I on, for arrays of jobs. The outputs are in D/I-of-N.

Inputs are never replaced, and other files only with --overwrite.

Exit status: 0 with results for every input; 1 if an input was skipped or cut short, or an argument is wrong; 130 after
Ctrl-C.
"""

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from swin_backbone.commands import ANY_ERROR, PREDICTOR_OPTIONS, Parser, exit_with_message, make_predictor, run
from swin_backbone.options import ARGUMENTS, describe_unused_options, positive

if TYPE_CHECKING:
    from swin_backbone.workbench.predict.inference import Inference

MAX_PIXELS = 4096 * 2160  # a 4K frame; about 3 GB


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('inputs', nargs='+', metavar='INPUT', help='picture, video, folder or pattern in quotes')
    # Renamed by `dest`: names of `Options` are read as such, where `annotations` is of --data and `batch` of a training
    parser.add(
        f'{PREDICTOR_OPTIONS} annotations batch score_thr first_label shard out_dir overwrite',
        config=dict(metavar='MODEL', help=f'{ARGUMENTS["config"]["help"]}; or a folder of tools/export.py'),
        annotations=dict(dest='ids_file', help='COCO JSON with the ids of pictures and categories for results.json'),
        batch=dict(dest='batch_size', default=1, help='pictures at a time (default: 1)'),
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
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    from swin_backbone.workbench.data.media import find_media
    from swin_backbone.workbench.predict.inference import Inference
    from swin_backbone.workbench.predict.results import ResultsWriter

    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    with exit_with_message((OSError,), args.debug), ExitStack() as stack:
        with exit_with_message(ANY_ERROR, args.debug):
            inputs = find_media(args.inputs)
            if args.shard:
                index, count = args.shard
                inputs = inputs[index::count]
                args.out_dir /= f'{index}-of-{count}'
            predictor = make_predictor(args)
            writer = ResultsWriter(
                args.out_dir, predictor, args.score_thr, args.first_label, args.ids_file, args.save_features
            )
            read_files = [args.config, *filter(None, (args.weights, args.ids_file))]
            stack.enter_context(writer.claim_outputs(inputs, read_files, args.overwrite))
        # From here on only an error of the disk is the user's: another one keeps its traceback
        if unused := describe_unused_options(args, predictor.scope, *(['segmentor'] if writer.is_panoptic else [])):
            print(unused, file=sys.stderr)
        start = time.monotonic()
        inference = Inference(predictor, writer, progress, args.max_pixels, args.batch_size, args.debug)
        with inference.stop_on_ctrl_c(), progress:
            inference.run(inputs)
    print_summary(args, inference, time.monotonic() - start)
    if inference.is_stopped:
        return 128 + signal.SIGINT
    return 1 if inference.unreadable or inference.failed else 0


def print_summary(args: argparse.Namespace, inference: 'Inference', seconds: float) -> None:
    from swin_backbone.workbench.pictures.colours import PALETTE_SIZE

    predictor, writer = inference.predictor, inference.writer
    objects = f'{len(writer.entries)} objects, ' if predictor.scope == 'mmdet' else ''
    if predictor.scope == 'mmpretrain':
        for entry in writer.entries:
            print(f'{entry["file_name"]}: {entry["class"]} {entry["score"]:.3f}')
    print(
        f'{len(writer.images)} pictures and frames of {len(inference.written)} files in {seconds:.1f} s, {objects}'
        f'{len(inference.unreadable)} files unreadable; see {args.out_dir}'
    )
    if inference.failed:
        print(f'{len(inference.failed)} files failed in the model, its pipeline or the writing of results')
    if predictor.scope == 'mmseg' and writer.images and len(predictor.meta['classes']) <= PALETTE_SIZE:
        print('labels/*.png have the classes as values with a palette: Pillow reads the classes, OpenCV the colours')
    if predictor.scope == 'mmdet' and not args.ids_file:
        print('results.json has the ids of images.json; --annotations FILE takes the ids of your own COCO JSON')


if __name__ == '__main__':
    run(main)
