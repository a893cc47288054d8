"""Test a model, and write a page on what it gets wrong.

python tools/report.py CONFIG CKPT --out-dir DIR
python tools/report.py CONFIG CKPT --data D --out-dir DIR --compare RUN

CKPT may be a folder of tools/export.py. The output is

  DIR/index.html   the page, without other files but the linked pictures
  DIR/report.json  its numbers

RUN is the folder of another report, or of a training with --report.
"""

import argparse

from swin_backbone.command_line import BUILD_ERRORS, CONFIG, Parser, make_job, run, stop_on_user_errors


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        f'{CONFIG} checkpoint data annotations amp precision compile device threads work_dir out_dir overwrite '
        'skip_unreadable allow_missing unsafe_load',
        checkpoint=dict(help='checkpoint of the whole model, or a folder of tools/export.py'),
        device=dict(default='cpu', help='device of an exported model (default: cpu)'),
        threads=dict(help='threads of an exported model on a CPU'),
        out_dir=dict(required=True),
    )
    parser.add_argument('--compare', nargs='+', default=[], metavar='RUN', help='show other reports beside this one')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    with stop_on_user_errors(BUILD_ERRORS, args.debug):
        job, settings = make_job(args), dict(device=args.device, threads=args.threads)
        job.report(args.checkpoint, args.out_dir, args.compare, args.overwrite, **settings)
    print(args.out_dir / 'index.html')


if __name__ == '__main__':
    run(main)
