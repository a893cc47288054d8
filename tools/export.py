"""Export a trained model, or its backbone, to a folder that runs without this package.

python tools/export.py CONFIG CKPT --out DIR [--format onnx|openvino|torch|aoti] [--part model|backbone|neck]
    [--shape H W] [--precision fp32|fp16|bf16|int8] [--pictures P ...] [--overwrite] [--backbone swin-t]
    [--cfg-options K=V ...]

DIR holds the model and deploy.json. deploy.json says how pictures are prepared, what the inputs and outputs are, and
what the verification found. For verification, the file is run by its own runtime and compared with PyTorch before DIR
is created. An int8 model is calibrated on --pictures, or without them on pictures of the config's training set.
"""

import argparse
import json
from pathlib import Path

from swin_backbone.command_line import (
    BUILD_ERRORS,
    add_checkpoint_arguments,
    add_config_arguments,
    add_overwrite,
    load_config,
    positive,
    run,
    stop_on_user_errors,
)
from swin_backbone.export.export import export
from swin_backbone.openmmlab.data import media


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='path of the config, or mmdet::..., mmseg::..., swin_backbone::...')
    parser.add_argument('checkpoint', help='checkpoint of the whole model')
    parser.add_argument('--out', type=Path, required=True, metavar='DIR', help='folder to make')
    parser.add_argument('--format', default='onnx', help='onnx (default), openvino, torch or aoti')
    parser.add_argument('--part', default='model', help='model (default), backbone or neck')
    parser.add_argument(
        '--shape',
        nargs=2,
        type=positive,
        metavar=('H', 'W'),
        help='one fixed size (default: free batch, height and width)',
    )
    parser.add_argument('--precision', help='fp32, fp16, bf16 or int8 (default: fp32; for openvino fp16 weights)')
    parser.add_argument(
        '--pictures', nargs='+', default=[], metavar='P', help='pictures for verification and for int8 calibration'
    )
    add_overwrite(parser)
    add_config_arguments(parser)
    add_checkpoint_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    with stop_on_user_errors(BUILD_ERRORS, args.traceback):
        found = [one for one in media.find_media(args.pictures) if not one.is_video] if args.pictures else []
        pictures = [frame.pixels for one in found for frame in media.read_frames(one)]
        cfg = load_config(args, with_data=False)
        manifest = export(
            cfg,
            args.checkpoint,
            args.out,
            args.format,
            args.part,
            tuple(args.shape) if args.shape else None,
            args.precision,
            pictures,
            args.unsafe_load,
            args.overwrite,
        )
    for figures in manifest['verification']:
        print(json.dumps(figures))
    for name, figures in manifest.get('quantization', {}).items():
        print(f'{name}: {json.dumps(figures)}')
    print(f'{args.out}: {manifest["format"]}, {manifest["precision"]}, verified')


if __name__ == '__main__':
    run(main)
