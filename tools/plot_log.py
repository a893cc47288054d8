"""Draw the curves of one or several trainings: loss terms, learning rate and validation metrics.

python tools/plot_log.py LOG [LOG ...]

A log is a working folder, the folder of a run, or mmengine's scalars.json. Runs in a working folder are drawn as
a single resumed training.
"""

import argparse
from pathlib import Path

from swin_backbone.commands import Parser, exit_with_message, run
from swin_backbone.outputs import check_outputs


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('logs', nargs='+', type=Path, metavar='LOG', help='working folder, run or scalars.json')
    parser.add(
        'out dpi overwrite debug', out=dict(default=Path('curves.png'), help='.png or .html (default: curves.png)')
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from swin_backbone.workbench.pictures.curves import curves_figure, read_log
    from swin_backbone.workbench.pictures.save import save_figure

    with exit_with_message(debug=args.debug):
        check_outputs(args.out, inputs=args.logs, overwrite=args.overwrite)
        save_figure(curves_figure([read_log(log) for log in args.logs]), args.out, args.dpi)
    print(args.out)


if __name__ == '__main__':
    run(main)
