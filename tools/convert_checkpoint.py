"""Write a Swin checkpoint of any origin in the format of another.

python tools/convert_checkpoint.py IN OUT --to official|mmdet|mmseg|timm|torchvision|hf [--overwrite] [--unsafe-load]
"""

import argparse

from swin_backbone import convert_checkpoint
from swin_backbone.checkpoints import FORMATS
from swin_backbone.command_line import (
    add_checkpoint_arguments,
    add_overwrite,
    run,
    stop_on_user_errors,
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('source', metavar='IN', help='path or URL of a checkpoint, whose format is recognised')
    parser.add_argument('target', metavar='OUT', help='file to write; .safetensors writes safetensors')
    parser.add_argument('--to', choices=FORMATS, required=True, help='format to write')
    add_overwrite(parser)
    add_checkpoint_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    with stop_on_user_errors():
        print(convert_checkpoint(args.source, args.target, args.to, args.unsafe_load, args.overwrite))


if __name__ == '__main__':
    run(main)
