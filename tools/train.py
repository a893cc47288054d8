"""Train a detector, segmentor or classifier, as mmdet's and mmseg's own tools/train.py.

python tools/train.py CONFIG --data D --backbone swin-t

A short check of your own data precedes the training; tools/check_data.py checks all data. curves.png beside the log
shows loss terms, learning rate and validation metrics.
"""

import argparse

from swin_backbone.command_line import (
    ARGUMENTS,
    BUILD_ERRORS,
    CONFIG,
    TRAINING_OPTIONS,
    Parser,
    make_job,
    run,
    stop_on_user_errors,
)


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        f'{CONFIG} {TRAINING_OPTIONS} data annotations weights resume amp compile val_loss work_dir '
        'skip_unreadable unsafe_load timeout launcher local_rank',
        weights=dict(help=f'begin with weights of a whole model: {ARGUMENTS["--weights"]["help"]}'),
    )
    parser.add_argument(
        '--vis', choices=['tensorboard', 'wandb'], help='write the log for TensorBoard or Weights & Biases too'
    )
    args = parser.parse_args()
    if args.resume and args.weights:
        parser.error('--resume loads the weights of a checkpoint: leave out --weights')
    return args


def main() -> None:
    args = parse_args()
    from swin_backbone.workbench.runner.build import RUN_ERRORS, run
    from swin_backbone.workbench.runner.monitor import enable_vis

    with stop_on_user_errors(RUN_ERRORS, args.debug):
        with stop_on_user_errors(BUILD_ERRORS, args.debug):
            job = make_job(args)
            enable_vis(job.cfg, args.vis)
            runner = job.build_training(args.weights, args.resume)
        run(runner, 'train')


if __name__ == '__main__':
    run(main)
