"""Write a Swin checkpoint of any origin in another format.

python tools/convert_checkpoint.py IN OUT --to FORMAT
"""

import argparse

from swin_backbone.commands import Parser, exit_with_message, run


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('source', metavar='IN', help='path or URL of a checkpoint, whose format is recognised')
    parser.add_argument('target', metavar='OUT', help='file to write; .safetensors writes safetensors')
    parser.add('overwrite unsafe_load timeout debug')
    parser.add_argument(
        '--to',
        choices=('official', 'mmdet', 'timm', 'torchvision', 'hf', 'mmseg'),
        required=True,
        help='format to write',
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from swin_backbone import convert_checkpoint

    with exit_with_message(debug=args.debug):
        print(convert_checkpoint(args.source, args.target, args.to, args.unsafe_load, args.overwrite))


if __name__ == '__main__':
    run(main)
