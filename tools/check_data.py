"""Check the data of a config before training: files, sizes, classes, boxes, labels.

python tools/check_data.py CONFIG --data D

All annotations are read. Of each data set, --max-files random pictures and labels are opened, for at most --seconds.
Exit status: 0 if a training can use all data, also with warnings; 1 if not.
"""

import argparse

from rich.console import Console

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, run
from swin_backbone.options import number_from, positive


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(f'{JOB_OPTIONS} data annotations classes')
    parser.add_argument(
        '--max-files',
        type=positive,
        default=2000,
        metavar='N',
        help='open at most N pictures of each data set (default: 2000)',
    )
    parser.add_argument(
        '--seconds',
        type=number_from(0),
        default=60,
        metavar='S',
        help='open pictures for at most S seconds for each data set (default: 60)',
    )
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    from swin_backbone.workbench.data.check_data import check_data, print_checks
    from swin_backbone.workbench.data.datasets import BuiltDatasets

    with exit_with_message(ANY_ERROR, args.debug):
        checks = check_data(BuiltDatasets(make_job(args).cfg, fatal_faults=()), args.max_files, args.seconds)
    print_checks(checks, Console())
    return 1 if any(check.errors for check in checks) else 0


if __name__ == '__main__':
    run(main)
