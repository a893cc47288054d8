"""Show the augmented pictures of a training pipeline, with boxes, masks, labels or classes.

python tools/browse_dataset.py CONFIG --output-dir D --not-show

Without --not-show, each picture appears in a window. Unreadable pictures are named and skipped. Exit status: 0 if all
pictures are drawn, 1 if not.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from swin_backbone.commands import ANY_ERROR, JOB_OPTIONS, Parser, exit_with_message, make_job, run
from swin_backbone.options import number_from, positive
from swin_backbone.outputs import check_outputs, make_folder
from swin_backbone.whole_files import write_whole

READABLE = 224  # least pixels of a side, for a readable class name


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add(f'{JOB_OPTIONS} data annotations classes overwrite skip_unreadable')
    parser.add_argument('--output-dir', metavar='D', type=Path, help='write the pictures to D')
    parser.add_argument('--not-show', action='store_true', help='open no window')
    parser.add_argument(
        '--show-interval',
        type=number_from(0),
        default=2,
        metavar='S',
        help='seconds for each picture in the window (default: 2)',
    )
    parser.add_argument('--phase', choices=['train', 'val', 'test'], default='train', help='data set (default: train)')
    parser.add_argument('--show-number', type=positive, metavar='N', help='stop after N pictures')
    args = parser.parse_args()
    if args.not_show and not args.output_dir:
        parser.error('--not-show without --output-dir does nothing')
    return args


def draw(visualizer: Any, item: dict[str, Any], name: str, show: bool, seconds: float) -> NDArray[np.uint8]:
    """Return the picture of an item with its annotations drawn, (H, W, 3) BGR."""
    sample = item['data_samples']
    bgr_HW3 = item['inputs'].permute(1, 2, 0).numpy()
    pixels = np.ascontiguousarray(bgr_HW3[..., ::-1]).clip(0, 255).astype(np.uint8)
    if hasattr(visualizer, 'visualize_cls'):
        side = max(READABLE, *pixels.shape[:2])
        shown = visualizer.visualize_cls(pixels, sample, resize=side, show=show, wait_time=seconds, name=name)
        return shown[..., ::-1]  # type: ignore[no-any-return]
    instances = sample.get('gt_instances', {})
    if hasattr(instances.get('bboxes'), 'tensor'):  # mmdet's box structure, which its visualizer does not take
        instances.bboxes = instances.bboxes.tensor
    visualizer.add_datasample(name, pixels, sample, draw_gt=True, draw_pred=False, show=show, wait_time=seconds)
    drawn: NDArray[np.uint8] = visualizer.get_image()[..., ::-1]
    return drawn


def main() -> int:
    args = parse_args()
    from mmengine.registry import VISUALIZERS, init_default_scope

    from swin_backbone.openmmlab.errors import describe_error
    from swin_backbone.workbench.data.datasets import BuiltDatasets, iter_base_datasets
    from swin_backbone.workbench.data.guard import guard_dataset
    from swin_backbone.workbench.predict.predictor import VISUALIZERS_OF
    from swin_backbone.workbench.runner import build

    with exit_with_message(ANY_ERROR, args.debug):
        cfg = make_job(args).cfg
        visualizers = {**VISUALIZERS_OF, 'mmrotate': 'RotLocalVisualizer'}
        if (scope := cfg.get('default_scope')) not in visualizers:
            raise ValueError(f'the config must be of one of {", ".join(visualizers)}, got default_scope={scope!r}')
        init_default_scope(cfg.default_scope)
        if cfg.get(f'{args.phase}_dataloader') is None:
            raise ValueError(f'--phase {args.phase}: the config has no {args.phase}_dataloader')
        if args.output_dir:
            make_folder(args.output_dir)
        dataset = BuiltDatasets(cfg, fatal_faults=()).build_phase(args.phase)
        guard_dataset(dataset, cfg, args.phase == 'train', args.skip_unreadable)
        for base in iter_base_datasets(dataset):
            base.data_guard.are_stated_masks_checked = False  # a wrong mask is an error only of its picture
    visualizer = VISUALIZERS.build(dict(type=visualizers[scope], name='browse'))
    visualizer.dataset_meta = dataset.metainfo
    num_pictures = min(len(dataset), args.show_number or len(dataset))
    num_failed = 0
    for index in track(range(num_pictures), description=f'{args.phase} data'):
        source = Path(f'{index:06d}')
        try:
            item = dataset[index]
            if item is None:  # a filter in the pipeline removed the item
                continue
            source = Path(item['data_samples'].get('img_path') or source)
            drawn = draw(visualizer, item, source.name, not args.not_show, args.show_interval)
        except Exception as error:
            if args.debug:
                raise
            where = '' if isinstance(error, build.RUN_ERRORS) else f'{source} cannot be drawn: '
            print(f'{sys.argv[0]}: {where}{describe_error(error)}', file=sys.stderr)
            num_failed += 1
            continue
        if args.output_dir:
            with exit_with_message((OSError,), args.debug):
                path = args.output_dir / f'{index:06d}_{source.stem}.jpg'
                check_outputs(path, overwrite=args.overwrite)
                write_whole(path, cv2.imencode('.jpg', drawn)[1].tobytes())
    if args.output_dir:
        not_drawn = f', {num_failed} not drawn' if num_failed else ''
        print(f'{num_pictures - num_failed} pictures in {args.output_dir}{not_drawn}')
    return 1 if num_failed else 0


if __name__ == '__main__':
    run(main)
