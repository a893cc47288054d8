"""Train a detector, segmentor or classifier, as mmdet's and mmseg's own tools/train.py.

python tools/train.py CONFIG --data D --backbone swin-t

The log begins with what is unusual in the data; tools/check_data.py looks at pictures too. curves.png beside the log
shows loss terms, learning rate and validation metrics.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, run
from swin_backbone.options import ARGUMENTS, TRAINING_SETTINGS

if TYPE_CHECKING:
    from swin_backbone.workbench.runner.safe_runner import SafeRunner


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        f'{JOB_OPTIONS} {TRAINING_SETTINGS} workers data annotations classes weights resume amp compile val_loss vis '
        'work_dir skip_unreadable unsafe_load timeout launcher local_rank',
        weights=dict(help=f'begin with weights of a whole model: {ARGUMENTS["--weights"]["help"]}'),
    )
    parser.add_argument(
        '--report',
        action='store_true',
        help='at the end write report/ on the last checkpoint into the working folder, as tools/report.py',
    )
    args = parser.parse_args()
    if args.report and args.launcher != 'none':
        parser.error('--report takes one process: use tools/report.py after the training')
    if args.resume and args.weights:
        parser.error('--resume loads the weights of a checkpoint: leave out --weights')
    return args


def write_report(runner: SafeRunner, args: argparse.Namespace) -> None:
    """Write report/ on the last checkpoint of a training into its working folder."""
    from swin_backbone.options import Options
    from swin_backbone.workbench.job import Job, report

    with exit_with_message(ANY_ERROR, args.debug):
        if runner.last_checkpoint is None:
            raise ValueError('--report takes a checkpoint, and the training has written none')
        folder = Path(runner.cfg.work_dir, 'report')
        options = Options(skip_unreadable=args.skip_unreadable, unsafe_load=args.unsafe_load)
        report(Job(runner.cfg, options), runner.last_checkpoint, folder, overwrite=True)
    print(folder / 'index.html')


def main() -> None:
    args = parse_args()
    from swin_backbone.workbench.configs.data_parts import require_data
    from swin_backbone.workbench.job import open_training
    from swin_backbone.workbench.runner.build import RUN_ERRORS, run_loop
    from swin_backbone.workbench.runner.hooks.signals import StoppedBySignal

    # `run_loop` turns errors of the user into RUN_ERRORS; any other keeps its traceback
    with exit_with_message(RUN_ERRORS, args.debug), ExitStack() as stack:
        with exit_with_message(ANY_ERROR, args.debug):
            job = make_job(args)
            if args.report:
                require_data(job.cfg, ('test',))
            runner = stack.enter_context(open_training(job))
        try:
            run_loop(runner, 'train')
        except StoppedBySignal as stop:
            sys.exit(stop.status)
        if args.report:
            write_report(runner, args)


if __name__ == '__main__':
    run(main)
