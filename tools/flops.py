"""Count parameters and multiply-adds, by part and by stage, without weights and data.

python tools/flops.py CONFIG [--shape H W] [--backbone-only] [--json F [--overwrite]]
    [--backbone swin-t] [--cfg-options K=V ...]
"""

import argparse
import json
from pathlib import Path

from rich.console import Console

from swin_backbone.command_line import (
    BUILD_ERRORS,
    add_config_arguments,
    add_overwrite,
    load_config,
    positive,
    run,
    stop_on_user_errors,
)
from swin_backbone.cost.report import print_report, report
from swin_backbone.outputs import claim


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='path of the config, or mmdet::..., mmseg::..., swin_backbone::...')
    parser.add_argument(
        '--shape',
        type=positive,
        nargs='+',
        metavar='PIXELS',
        help='height and width, or one side for both (default: 800 1280 for a detector, 512 2048 for a segmentor)',
    )
    parser.add_argument('--backbone-only', action='store_true', help='leave out neck and heads')
    parser.add_argument('--json', metavar='F', type=Path, help='write the numbers to F')
    add_overwrite(parser)
    add_config_arguments(parser)
    args = parser.parse_args()
    if args.shape and len(args.shape) > 2:
        parser.error(f'--shape takes one or two sides, got {args.shape}')
    return args


def main() -> None:
    args = parse_args()
    with stop_on_user_errors(BUILD_ERRORS, args.traceback):
        outputs = claim(args.json, [args.config], args.overwrite) if args.json else None
        cfg = load_config(args)
        data = report(cfg, (args.shape * 2)[:2] if args.shape else None, args.backbone_only)
    print_report(data, Console())
    if outputs:
        with stop_on_user_errors((OSError,), args.traceback):
            outputs.write(args.json, (json.dumps(data, indent=2) + '\n').encode())


if __name__ == '__main__':
    run(main)
