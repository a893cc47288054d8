"""Train a detector or segmentor: the command line of mmdet's and mmseg's own tools/train.py.

python tools/train.py CONFIG [--work-dir D] [--resume [CKPT]] [--amp] [--auto-scale-lr]
    [--backbone swin-t [--recipe keep]] [--vis tensorboard|wandb] [--cfg-options K=V ...]

Beside the log, curves.png shows loss terms, learning rate and validation metrics.
"""

import argparse

from command_line import add_common_arguments, run, stop_on_user_errors

from swin_backbone.checkpoints import CheckpointError
from swin_backbone.openmmlab import runtime
from swin_backbone.openmmlab.monitor import BACKENDS, enable_vis


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='path of the config, or mmdet::..., mmseg::..., swin_backbone::...')
    parser.add_argument('--amp', action='store_true', help='train in mixed precision')
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
        help='go on from CKPT, or without it from the last checkpoint in the working folder',
    )
    parser.add_argument('--vis', choices=list(BACKENDS), help='write what is logged for TensorBoard or W&B too')
    add_common_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    with stop_on_user_errors():
        cfg = runtime.load_config(
            args.config, args.work_dir, args.cfg_options, args.launcher, args.backbone, args.recipe
        )
        if args.amp:
            runtime.enable_amp(cfg)
        if args.auto_scale_lr:
            runtime.enable_auto_scale_lr(cfg)
        enable_vis(cfg, args.vis)
        runtime.set_resume(cfg, args.resume)
    with stop_on_user_errors((CheckpointError,)):
        runtime.build_runner(cfg, args.unsafe_load).train()


if __name__ == '__main__':
    run(main)
