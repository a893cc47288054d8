"""Export a trained model, or its backbone, to a folder that runs without this package.

python tools/export.py CONFIG CKPT --out-dir DIR

DIR has the model and deploy.json, which describes inputs, outputs and the preparation of pictures. Before DIR is made,
a runtime runs the model, and the outputs are compared with PyTorch. --pictures calibrate an int8 model without
--operators; without --pictures the training set does.
"""

import argparse
import json

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, run
from swin_backbone.options import describe_unused_options


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        f'{JOB_OPTIONS} checkpoint shape precision score_thr out_dir overwrite unsafe_load timeout',
        out_dir=dict(required=True, help='folder to make'),
        precision=dict(
            choices=('fp32', 'fp16', 'bf16', 'int8'), help='default: fp32, and of openvino fp16, for weights'
        ),
        shape=dict(help='fixed height and width in pixels (default: every batch, height and width)'),
    )
    parser.add_argument('--format', default='onnx', metavar='F', help='onnx (default) or openvino')
    parser.add_argument('--part', default='model', metavar='P', help='model (default), backbone or neck')
    parser.add_argument(
        '--operators',
        metavar='swin',
        help='compute the backbone by the compiled library; DIR then contains the library',
    )
    parser.add(
        'pictures', pictures=dict(nargs='+', default=[], help='pictures for verification and for int8 calibration')
    )
    parser.add_argument(
        '--texts', default='', metavar='T', help="classes for Grounding DINO: 'cat . dog .' (default: of the data set)"
    )
    args = parser.parse_args()
    if args.part != 'model':
        parser.refuse(args, ('score_thr', 'texts'), 'takes --part model')
    return args


def main() -> None:
    args = parse_args()
    from swin_backbone.workbench.configs.data_parts import find_tested_dataset
    from swin_backbone.workbench.data.media import find_media
    from swin_backbone.workbench.export.picture import find_load_settings, load_bands
    from swin_backbone.workbench.export.verify import describe_outcome
    from swin_backbone.workbench.job import export

    with exit_with_message(ANY_ERROR, args.debug):
        paths = [str(medium.path) for medium in find_media(args.pictures or []) if not medium.is_video]
        if args.pictures and not paths:
            raise ValueError(f'--pictures takes pictures, got videos alone: {", ".join(args.pictures)}')
        job = make_job(args)
        job.print_once(describe_unused_options(args, job.cfg.get('default_scope')))
        load_settings = find_load_settings(find_tested_dataset(job.cfg).pipeline)
        pictures = [load_bands(path, load_settings) for path in paths]
        manifest = export(
            job,
            args.checkpoint,
            args.out_dir,
            args.format,
            part=args.part,
            shape=args.shape,
            precision=args.precision,
            pictures=pictures,
            overwrite=args.overwrite,
            operators=args.operators,
            score_thr=args.score_thr,
            texts=[text.strip() for text in args.texts.split('.') if text.strip()],
        )
    for figures in manifest['verification']:
        print(json.dumps(figures))
    for name, figures in manifest.get('quantization', {}).items():
        print(f'{name}: {json.dumps(figures)}')
    outcome = describe_outcome(manifest['verification'])
    print(f'{args.out_dir}: {manifest["format"]}, {manifest["precision"]}, {outcome}')


if __name__ == '__main__':
    run(main)
