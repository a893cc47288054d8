"""Print a config after inheritance, backbone swap and overrides. What the swap changed goes to stderr.

python tools/print_config.py CONFIG [--save-path F [--overwrite]] [--backbone swin-t [--recipe keep]]
    [--cfg-options K=V ...]
"""

import argparse
import contextlib
import sys
from pathlib import Path

from mmengine.fileio import dump

from swin_backbone.command_line import (
    BUILD_ERRORS,
    add_config_arguments,
    add_overwrite,
    load_config,
    run,
    stop_on_user_errors,
)
from swin_backbone.openmmlab.config.files import SUFFIXES
from swin_backbone.outputs import claim


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='path of the config, or mmdet::..., mmseg::..., swin_backbone::...')
    parser.add_argument('--save-path', metavar='F', type=Path, help=f'write it to F too, one of {", ".join(SUFFIXES)}')
    add_overwrite(parser)
    add_config_arguments(parser)
    args = parser.parse_args()
    if args.save_path and args.save_path.suffix not in SUFFIXES:
        parser.error(f'--save-path takes a name that ends in {", ".join(SUFFIXES)}, got {args.save_path}')
    return args


def main() -> None:
    args = parse_args()
    with stop_on_user_errors(BUILD_ERRORS, args.traceback), contextlib.redirect_stdout(sys.stderr):
        outputs = claim(args.save_path, [args.config], args.overwrite) if args.save_path else None
        cfg = load_config(args, with_data=False)
        for key in ('launcher', 'work_dir'):  # of a run, not of the config
            cfg.pop(key)
        text = cfg.pretty_text
        if outputs:
            suffix = args.save_path.suffix
            saved = text if suffix == '.py' else dump(cfg.to_dict(), file_format=suffix[1:])
            outputs.write(args.save_path, saved.encode())
    print(text)


if __name__ == '__main__':
    run(main)
