"""Train a detector, segmentor or classifier: the command line of mmdet's and mmseg's own tools/train.py.

python tools/train.py CONFIG [--work-dir D] [--resume [CKPT] | --weights NAME] [--amp] [--auto-scale-lr]
    [--backbone swin-t [--recipe keep]] [--skip-unreadable] [--vis tensorboard|wandb] [--cfg-options K=V ...]

`own_data` is checked briefly before training, see tools/check_data.py. curves.png beside the log shows loss terms,
learning rate and validation metrics.
"""

import argparse
from contextlib import ExitStack

from swin_backbone.command_line import (
    BUILD_ERRORS,
    add_amp,
    add_common_arguments,
    add_data_arguments,
    add_skip_unreadable,
    add_training_settings,
    add_weights,
    load_config,
    run,
    stop_on_user_errors,
    training_settings,
)
from swin_backbone.openmmlab import runtime
from swin_backbone.openmmlab.config.paths import make_folder, require_data
from swin_backbone.openmmlab.config.published import start_from_published
from swin_backbone.openmmlab.data.check_data import check_own_data
from swin_backbone.openmmlab.launchers import rank
from swin_backbone.openmmlab.training.lock import only_training_in
from swin_backbone.openmmlab.training.monitor import BACKENDS, enable_vis


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='path of the config, or mmdet::..., mmseg::..., swin_backbone::...')
    add_amp(parser)
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate with the number of images a step, from the config's base_batch_size",
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CKPT',
        help='continue from CKPT, or without CKPT from the last checkpoint in the working folder',
    )
    add_weights(parser, 'begin with the published weights of a whole model')
    add_data_arguments(parser)
    add_training_settings(parser)
    add_skip_unreadable(parser)
    parser.add_argument('--vis', choices=list(BACKENDS), help='write what is logged for TensorBoard or W&B too')
    add_common_arguments(parser)
    args = parser.parse_args()
    if args.resume and args.weights:
        parser.error('--resume goes on from the weights of a checkpoint: leave out --weights')
    return args


def main() -> None:
    args = parse_args()
    with ExitStack() as until_it_ends, stop_on_user_errors(runtime.RUN_ERRORS, args.traceback):
        with stop_on_user_errors(BUILD_ERRORS, args.traceback):
            cfg = load_config(args, settings=training_settings(args))
            if args.weights:
                start_from_published(cfg, args.weights)
            if args.amp:
                runtime.enable_amp(cfg)
            if args.auto_scale_lr:
                runtime.enable_auto_scale_lr(cfg)
            enable_vis(cfg, args.vis)
            runtime.set_resume(cfg, args.resume)
            require_data(cfg, ('train', 'val'))
            check_own_data(cfg, args.skip_unreadable)
            make_folder(cfg.work_dir, '--work-dir')
            until_it_ends.enter_context(only_training_in(cfg.work_dir, rank(cfg.launcher)))
            runner = runtime.build_runner(cfg, args.unsafe_load, skip_unreadable=args.skip_unreadable)
        runtime.run(runner, 'train')


if __name__ == '__main__':
    run(main)
