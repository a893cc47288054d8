"""Test a detector, segmentor or classifier, as mmdet's and mmseg's own tools/test.py.

python tools/test.py CONFIG CKPT
python tools/test.py CONFIG --weights NAME
python tools/test.py CONFIG DIR

DIR is a folder of tools/export.py. The exported model runs in its runtime, with data and metric of the config.
"""

import argparse
from contextlib import ExitStack

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, run
from swin_backbone.options import describe_unused_options, number_from


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        f'{JOB_OPTIONS} checkpoint data workers annotations classes weights amp precision compile device threads '
        'first_label work_dir out overwrite skip_unreadable allow_missing unsafe_load timeout launcher local_rank',
        checkpoint=dict(nargs='?', help='checkpoint of the whole model, or a folder of tools/export.py'),
        device=dict(help='device of an exported model (default: cpu)'),
        threads=dict(help='threads of an exported model on a CPU'),
        out=dict(
            type=str,
            help="for a detector, .json file for boxes in COCO's format, and masks beside it in F.segm.json; .pkl file "
            'for the predictions; for a segmentor, a folder for label PNGs, as of infer.py',
        ),
    )
    parser.add_argument('--show', action='store_true', help='show predictions in a window')
    parser.add_argument('--show-dir', metavar='D', help='draw predictions on the pictures and write them to D')
    parser.add_argument(
        '--wait-time',
        type=number_from(0),
        default=2,
        metavar='S',
        help='with --show: seconds for each picture (default: 2)',
    )
    parser.add_argument('--tta', action='store_true', help='test-time augmentation of the config, or flipping')
    args = parser.parse_args()
    if (args.checkpoint is None) == (args.weights is None):
        parser.error('give CONFIG CKPT, or CONFIG --weights W')
    if args.out is None:
        parser.refuse(args, ('first_label',), 'takes --out')
    return args


def main() -> None:
    args = parse_args()
    from swin_backbone.workbench.job import open_test
    from swin_backbone.workbench.runner.build import RUN_ERRORS, run_loop
    from swin_backbone.workbench.runner.launchers import read_rank
    from swin_backbone.workbench.runner.prediction_outputs import OutputOptions

    outputs = OutputOptions(
        args.tta, args.show, args.wait_time, args.show_dir, args.out, args.first_label, args.overwrite
    )
    # OSError: outputs move to their places when the stack ends
    with exit_with_message((OSError,), args.debug), ExitStack() as stack:
        with exit_with_message(ANY_ERROR, args.debug):
            checkpoint = args.checkpoint or args.weights
            job = make_job(args)
            job.print_once(describe_unused_options(args, job.cfg.get('default_scope')))
            runner = stack.enter_context(open_test(job, checkpoint, outputs))
        with exit_with_message(RUN_ERRORS, args.debug):
            metrics = run_loop(runner, 'test')
    if read_rank(args.launcher):
        return
    if args.show_dir:
        print(f'{len(runner.test_dataloader.dataset)} pictures in {args.show_dir}')
    for name, value in metrics.items():
        print(f'{name}: {value}')


if __name__ == '__main__':
    run(main)
