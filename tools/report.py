"""Test a model, and write a page on what it gets wrong.

python tools/report.py CONFIG CKPT --out-dir DIR
python tools/report.py CONFIG CKPT --data D --out-dir DIR --compare RUN

CKPT may be a folder of tools/export.py. The output is

  DIR/index.html   the page, without other files but the linked pictures
  DIR/report.json  its numbers

RUN is the folder of another report, or of a training with --report.
"""

import argparse

from swin_backbone.command_line import BUILD_ERRORS, CONFIG, Parser, load_config, run, stop_on_user_errors


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        f'{CONFIG} checkpoint data annotations amp device threads work_dir out_dir overwrite skip_unreadable '
        'allow_missing unsafe_load',
        checkpoint=dict(help='checkpoint of the whole model, or a folder of tools/export.py'),
        device=dict(default='cpu', help='device of an exported model (default: cpu)'),
        threads=dict(help='threads of an exported model on a CPU'),
        out_dir=dict(required=True),
    )
    parser.add_argument('--compare', nargs='+', default=[], metavar='RUN', help='show other reports beside this one')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from swin_backbone.export.predictor import is_exported, set_exported
    from swin_backbone.openmmlab import runtime
    from swin_backbone.openmmlab.config.paths import require_data
    from swin_backbone.openmmlab.config.published import start_from
    from swin_backbone.workbench.report.collect import add_coco_metric, write_report

    with stop_on_user_errors(runtime.RUN_ERRORS, args.debug):
        with stop_on_user_errors(BUILD_ERRORS, args.debug):
            cfg = load_config(args)
            if is_exported(args.checkpoint):
                set_exported(cfg, args.checkpoint, args.device, args.threads)
            else:
                start_from(cfg, args.checkpoint)
            add_coco_metric(cfg)
            if args.amp:
                runtime.enable_amp_of_test(cfg, args.amp)
            require_data(cfg, ('test',))
            runner = runtime.build_runner(cfg, args.unsafe_load, not args.allow_missing, args.skip_unreadable)
        report = write_report(
            runner, lambda: runtime.run(runner, 'test'), args.out_dir, args.checkpoint, args.compare, args.overwrite
        )
    print(args.out_dir / 'index.html')


if __name__ == '__main__':
    run(main)
