"""Write a page on what a model gets wrong, from a config and a checkpoint, or from the files of any program.

python tools/report.py CONFIG CKPT --out-dir DIR
python tools/report.py CONFIG CKPT --data D --out-dir DIR --compare RUN
python tools/report.py --labels L --results R --pictures P --out-dir DIR

CKPT may be a folder of tools/export.py. The output is

  DIR/index.html   the page, without other files but the linked pictures
  DIR/report.json  its numbers

A test also writes labels and results to DIR, in the form that --labels and --results take. These need no torch. They
are, with files of equal kinds:

  detection        a COCO JSON and COCO results, with boxes or masks
  segmentation     two folders of PNGs with the class of each pixel, 255 for
                   ignored pixels; L/classes.txt has the names
  classification   two CSV files: file,class of each picture; and file with a
                   column of scores for each class

RUN is the folder of another report, or of a training with --report.
"""

import argparse
import sys
from pathlib import Path

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, run

OPTIONS_WITH_FILES = {'labels', 'results', 'pictures', 'compare', 'out_dir', 'overwrite', 'debug'}


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__, needs_package=lambda args: args.labels is None)
    parser.add(
        f'{JOB_OPTIONS} checkpoint data workers annotations classes amp precision compile device threads work_dir '
        'out_dir overwrite skip_unreadable allow_missing unsafe_load timeout',
        config=dict(nargs='?'),
        checkpoint=dict(nargs='?', help='checkpoint of the whole model, or a folder of tools/export.py'),
        device=dict(help='device of an exported model (default: cpu)'),
        threads=dict(help='threads of an exported model on a CPU'),
        out_dir=dict(required=True),
    )
    parser.add_argument('--compare', nargs='+', default=[], metavar='RUN', help='show other reports beside this one')
    files = parser.add_argument_group('files of any program, in place of CONFIG CKPT')
    files.add_argument('--labels', type=Path, metavar='L', help='COCO JSON, folder of label PNGs or CSV')
    files.add_argument('--results', type=Path, metavar='R', help='COCO results, folder of predicted PNGs or CSV')
    files.add_argument('--pictures', type=Path, metavar='P', help='folder of the pictures (default: none is shown)')
    args = parser.parse_args()
    are_given = [value is not None for value in (args.labels, args.results, args.config, args.checkpoint)]
    if are_given not in ([True, True, False, False], [False, False, True, True]):
        parser.error('give CONFIG CKPT, or --labels L --results R')
    if args.labels is None:
        parser.refuse(args, ('pictures',), 'takes --labels and --results')
    else:
        parser.refuse(args, vars(args).keys() - OPTIONS_WITH_FILES, 'is not used with --labels and --results')
    return args


def main() -> None:
    args = parse_args()
    if args.labels is None:
        from swin_backbone.workbench.job import report

        with exit_with_message(ANY_ERROR, args.debug):
            report(make_job(args), args.checkpoint, args.out_dir, args.compare, args.overwrite)
    else:
        from swin_backbone.workbench.report.files import find_task
        from swin_backbone.workbench.report.write import read_reports, write_report

        paths = args.out_dir, args.labels, args.results, args.pictures
        try:
            others = read_reports(args.compare, find_task(args.labels, args.results))
            write_report(*paths, others=others, overwrite=args.overwrite)
        except Exception as error:  # not exit_with_message, which imports mmengine: files need no torch
            if args.debug:
                raise
            sys.exit(f'{sys.argv[0]}: {error if isinstance(error, (ValueError, OSError)) else repr(error)}')
    print(args.out_dir / 'index.html')


if __name__ == '__main__':
    run(main)
