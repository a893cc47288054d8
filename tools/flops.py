"""Count parameters and multiply-adds, by part and by stage, without weights and data.

python tools/flops.py CONFIG --backbone swin-t
"""

import argparse
import json

from rich.console import Console

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, run
from swin_backbone.outputs import check_outputs
from swin_backbone.whole_files import write_whole


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        f'{JOB_OPTIONS} shape json overwrite',
        shape=dict(help='height and width in pixels (default: 800 1280 for a detector, 512 2048 for a segmentor)'),
    )
    parser.add_argument('--backbone-only', action='store_true', help='count without neck and heads')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from swin_backbone.workbench.cost.flops import count_costs, print_costs

    with exit_with_message(ANY_ERROR, args.debug):
        check_outputs(args.json, inputs=[args.config], overwrite=args.overwrite)
        costs = count_costs(make_job(args).cfg, args.shape, args.backbone_only)
    print_costs(costs, Console())
    if args.json:
        with exit_with_message((OSError,), args.debug):
            write_whole(args.json, (json.dumps(costs, indent=2) + '\n').encode())


if __name__ == '__main__':
    run(main)
