"""Draw the curves of one or several trainings: loss terms, learning rate and validation metrics.

python tools/plot_log.py LOG [LOG ...] [--out curves.png] [--dpi 100] [--overwrite]

A log is a working folder, the folder of one run in it, or a scalars.json that mmengine wrote. Runs in one working
folder are drawn as one training that was resumed.
"""

import argparse
from pathlib import Path

from swin_backbone.command_line import (
    add_overwrite,
    run,
    stop_on_user_errors,
    whole,
)
from swin_backbone.outputs import claim
from swin_backbone.pictures.curves import curves_figure, read_log
from swin_backbone.pictures.save import save_figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('logs', nargs='+', type=Path, metavar='LOG', help='working folder, run or scalars.json')
    parser.add_argument('--out', type=Path, default=Path('curves.png'), help='.png or .html (default: curves.png)')
    parser.add_argument('--dpi', type=whole(1, 1000), default=100, metavar='N', help='pixels an inch (default: 100)')
    add_overwrite(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    with stop_on_user_errors():
        outputs = claim(args.out, args.logs, args.overwrite)
        save_figure(curves_figure([read_log(log) for log in args.logs]), args.out, args.dpi, outputs.write)
    print(args.out)


if __name__ == '__main__':
    run(main)
