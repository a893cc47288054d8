"""Print a config as tools/train.py uses it. stderr shows what the options change.

python tools/print_config.py CONFIG --backbone swin-t --data D
"""

import argparse
import contextlib
import sys
from pathlib import Path

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, run
from swin_backbone.options import TRAINING_SETTINGS
from swin_backbone.outputs import check_outputs
from swin_backbone.whole_files import write_whole


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(f'{JOB_OPTIONS} {TRAINING_SETTINGS} workers data annotations classes overwrite')
    parser.add_argument(
        '--save-path', metavar='F', type=Path, help='write the config to F too: .py, .yml, .yaml or .json'
    )
    args = parser.parse_args()
    from swin_backbone.openmmlab.config_files import CONFIG_SUFFIXES

    if args.save_path and args.save_path.suffix not in CONFIG_SUFFIXES:
        parser.error(f'--save-path takes a name that ends in {", ".join(CONFIG_SUFFIXES)}, got {args.save_path}')
    return args


def main() -> None:
    args = parse_args()
    from mmengine.fileio import dump

    from swin_backbone.workbench.resolve import resolve_training

    with exit_with_message(ANY_ERROR, args.debug), contextlib.redirect_stdout(sys.stderr):
        check_outputs(args.save_path, inputs=[args.config], overwrite=args.overwrite)
        job = make_job(args)
        cfg, _, changes = resolve_training(job.cfg, job.options, job.data)
        job.print_once(*changes)
        for key in ('launcher', 'work_dir'):  # settings of a run
            cfg.pop(key)
        text = cfg.pretty_text
        if args.save_path:
            suffix = args.save_path.suffix
            saved = text if suffix == '.py' else dump(cfg.to_dict(), file_format=suffix[1:])
            write_whole(args.save_path, saved.encode())
    print(text)


if __name__ == '__main__':
    run(main)
