"""`python -m swin_backbone info`: what a report of a bug needs. It works where mmengine, mmcv or torch are missing."""

import argparse

from .info import print_info


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m swin_backbone', description='Swin Transformer backbones.')
    commands = parser.add_subparsers(dest='command', required=True)
    commands.add_parser(
        'info',
        help='print what is installed, which devices there are, and which backends can compute on each: paste it into '
        'a bug report',
    )
    return parser


if __name__ == '__main__':
    parser().parse_args()
    print_info()
