"""Test a detector, segmentor or classifier, as mmdet's and mmseg's own tools/test.py.

python tools/test.py CONFIG CKPT
python tools/test.py CONFIG --weights NAME
python tools/test.py CONFIG DIR

DIR is a folder of tools/export.py. The exported model runs in its runtime, with data and metric of the config.
"""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from swin_backbone.command_line import (
    BUILD_ERRORS,
    CONFIG,
    Parser,
    load_config,
    number,
    run,
    stop_on_user_errors,
)
from swin_backbone.outputs import check_outputs, claim_folder


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(
        f'{CONFIG} checkpoint data annotations weights amp compile device threads first_label work_dir out overwrite '
        'skip_unreadable allow_missing unsafe_load timeout launcher local_rank',
        checkpoint=dict(nargs='?', help='checkpoint of the whole model, or a folder of tools/export.py'),
        device=dict(default='cpu', help='device of an exported model (default: cpu)'),
        threads=dict(help='threads of an exported model on a CPU'),
        out=dict(
            type=str, help='.pkl file for the predictions; for a segmentor, a folder for label PNGs, as of infer.py'
        ),
    )
    parser.add_argument('--show', action='store_true', help='show predictions in a window')
    parser.add_argument('--show-dir', metavar='D', help='draw predictions on the pictures and write them to D')
    parser.add_argument(
        '--wait-time', type=number(0), default=2, metavar='S', help='with --show: seconds for each picture (default: 2)'
    )
    parser.add_argument('--tta', action='store_true', help='test-time augmentation of the config, or flipping')
    args = parser.parse_args()
    if (args.checkpoint is None) == (args.weights is None):
        parser.error('give CONFIG CKPT, or CONFIG --weights W')
    return args


def main() -> None:
    args = parse_args()
    with stop_on_user_errors((OSError,), args.debug), ExitStack() as places:
        metrics, pictures = test(args, places)
    from swin_backbone.workbench.runner.launchers import rank

    if rank(args.launcher):
        return
    if args.show_dir:
        print(f'{pictures} pictures in {args.show_dir}')
    for name, value in metrics.items():
        print(f'{name}: {value}')


def test(args: argparse.Namespace, places: ExitStack) -> tuple[dict[str, float], int]:
    """Return the metrics and the number of pictures. Other outputs move to their places when `places` close."""
    from swin_backbone.openmmlab.layers.compile import compile_model
    from swin_backbone.workbench import job
    from swin_backbone.workbench.configs.paths import require_data
    from swin_backbone.workbench.configs.published import find_weights, start_from
    from swin_backbone.workbench.export.predictor import is_exported, set_exported
    from swin_backbone.workbench.runner import build
    from swin_backbone.workbench.runner.launchers import rank
    from swin_backbone.workbench.runner.test_hooks import WriteLabelsHook, require_different_names, written_by_others

    def written_to(folder: str) -> Path:
        if not rank(args.launcher):
            claim_folder(folder, args.overwrite)
        return places.enter_context(written_by_others(Path(folder)))

    hooks: list[Any] = []
    with stop_on_user_errors(BUILD_ERRORS, args.debug):
        cfg = load_config(args)
        if args.weights:
            args.checkpoint = find_weights(args.weights)
        if is_exported(args.checkpoint):
            if args.amp or args.compile:
                raise ValueError(
                    '--amp and --compile take a checkpoint: an exported model has the precision of its export'
                )
            set_exported(cfg, args.checkpoint, args.device, args.threads)
        else:
            start_from(cfg, args.checkpoint)
        show_dir = str(written_to(args.show_dir)) if args.show_dir else None
        if args.show or show_dir:
            job.enable_drawing(cfg, args.show, show_dir, args.wait_time)
        if args.amp:
            job.enable_amp_of_test(cfg, args.amp)
        if args.tta:
            if is_exported(args.checkpoint):
                raise ValueError('--tta takes a checkpoint: an exported model sees each picture once')
            job.enable_tta(cfg)
        segments = cfg.get('default_scope') == 'mmseg'
        if args.out and segments:
            hooks.append(WriteLabelsHook(written_to(args.out), args.first_label))
        elif args.out:
            check_outputs(args.out, inputs=[args.config, args.checkpoint], overwrite=args.overwrite)
            beside = places.enter_context(written_by_others(Path(args.out).parent))
            job.write_predictions(cfg, str(beside / Path(args.out).name))
        require_data(cfg, ('test',))
        runner = job.build_runner(cfg, args.unsafe_load, not args.allow_missing, args.skip_unreadable)
        if args.compile:
            compile_model(runner.model)
        for hook in hooks:
            runner.register_hook(hook)
        if (args.out and segments) or (show_dir and cfg.get('default_scope') == 'mmdet'):
            require_different_names(runner.test_dataloader.dataset, with_suffix=not segments)
    with stop_on_user_errors(build.RUN_ERRORS, args.debug):
        return build.run(runner, 'test'), len(runner.test_dataloader.dataset)


if __name__ == '__main__':
    run(main)
