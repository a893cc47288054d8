"""Time whole models on a CPU: the toolbox's model, ours with a part more at a
time, and exported models.

All models have equal random weights and run in turn, on a picture or noise.
--train times a step with two pictures, and random objects or labels. Random
weights give low scores: with --cfg-options model.test_cfg.rcnn.score_thr=0, a
detector keeps the largest number of objects. Every step includes the steps
above:

    toolbox           the toolbox's own Swin and layers, in float32
    backbone          SwinBackbone
    layers            this package's layers
    convolutions      channels_last maps, 3x3 convolutions by the library
    bfloat16          `--amp`

--keep-memory lets the process use freed memory again, for all models, like the
tools here. The toolboxes' tools return memory to the kernel. DIR is a folder
of tools/export.py with a whole model.
"""

import argparse
import copy
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Optional

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import PixelData
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from swin_backbone import mixed_precision
from swin_backbone.commands import ANY_ERROR, Parser, exit_with_message, run
from swin_backbone.devices import keep_freed_memory, processor
from swin_backbone.openmmlab.layers.extension import replace_layers
from swin_backbone.openmmlab.layers.memory_format import prepare_convolutions
from swin_backbone.options import Options, positive
from swin_backbone.outputs import check_outputs
from swin_backbone.whole_files import write_whole
from swin_backbone.workbench.job import Job

from . import machine, timing
from .one_training import as_ours, as_theirs, restore_layers

STEPS = ('toolbox', 'backbone', 'layers', 'convolutions', 'bfloat16')
console = Console()
Run = Callable[[], object]


def parse_args() -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument(
        'config', metavar='CONFIG', help='of a detector or segmentor with a Swin: a path, or mmdet::...'
    )
    parser.add_argument('--picture', metavar='F', help='resized to --shape; noise otherwise')
    parser.add(
        'shape threads json overwrite cfg_options',
        shape=dict(default=(800, 1333), help='default: 800 1333'),
    )
    parser.add_argument('--train', action='store_true', help='a step of training, with two pictures')
    parser.add_argument('--steps', nargs='+', choices=STEPS, default=list(STEPS), metavar='NAME', help='default: all')
    parser.add_argument('--exported', nargs='+', default=[], metavar='DIR', help='run these too, not with --train')
    parser.add_argument('--runs', type=positive, default=5, metavar='N', help='timed runs of each (default: 5)')
    parser.add_argument('--keep-memory', action='store_true', help='use freed memory again, like the tools here')
    parser.add_argument('--busy-machine', action='store_true', help='permit other programs')
    args = parser.parse_args()
    if args.train and args.exported:
        parser.error('--exported takes no --train')
    return args


def main() -> None:
    args = parse_args()
    machine.pin_threads(args.threads)
    with exit_with_message(ANY_ERROR):
        check_outputs(args.json, inputs=[args.config], overwrite=args.overwrite)
        if not args.busy_machine:
            machine.require_quiet()
        if args.keep_memory:
            keep_freed_memory()
        cfg = Job(args.config, Options(cfg_options=args.cfg_options)).cfg
        picture = read_picture(args.picture, args.shape)
        runs = model_runs(cfg, args.steps, [picture] * 2 if args.train else [picture], args.train)
        runs.update({folder: exported_run(folder, picture, args.threads) for folder in args.exported})
        spreads = timing.alternate(runs, args.runs, 1)
    first = next(iter(spreads.values())).median
    title = f'{args.config}, {"2 x " if args.train else ""}{args.shape[0]}x{args.shape[1]}; {processor()}'
    table = Table('model', 'ms', 'fastest, slowest', 'times as fast', title=title, title_justify='left')
    for name, s in spreads.items():
        row = f'{s.median * 1e3:.0f}', f'{s.fastest * 1e3:.0f}, {s.slowest * 1e3:.0f}', f'{first / s.median:.2f}'
        table.add_row(name, *row)
    console.print(table)
    if args.json:
        with exit_with_message((OSError,)):
            rows = [dict(model=name, **spread._asdict()) for name, spread in spreads.items()]
            write_whole(args.json, json.dumps(dict(machine=processor(), rows=rows), indent=1).encode())


def read_picture(path: Optional[str], shape: tuple[int, int]) -> Tensor:
    """Return a picture (3, H, W) of uint8.

    Raises:
        ValueError: if the file cannot be read.
    """
    if path is None:
        return torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = cv2.imread(path)
    if pixels is None:
        raise ValueError(f'--picture {path} is no picture that can be read')
    return torch.from_numpy(cv2.resize(pixels, shape[::-1])).permute(2, 0, 1).contiguous()


def model_runs(cfg: Config, steps: list[str], pictures: list[Tensor], train: bool) -> dict[str, Run]:
    """Return functions that run the models once, by step."""
    runs: dict[str, Run] = {}
    weights: dict[str, Tensor] = {}
    for step in steps:
        model = build(cfg, STEPS.index(step))
        weights = weights or model.state_dict()
        model.load_state_dict({**model.state_dict(), **weights}, strict=False)
        model.train(train)
        run_once = train_once if train else predict_once
        runs[step] = partial(run_once, cfg, model, pictures, step == 'bfloat16')
    return runs


def build(cfg: Config, number: int) -> nn.Module:
    """Build the model of a step.

    Raises:
        ValueError: if the config's backbone is no Swin V1.
    """
    scope = cfg.get('default_scope', 'mmdet')
    described = copy.deepcopy(cfg.model)  # some toolboxes write into the config of a model
    theirs = as_theirs(described.backbone, scope)
    described.backbone = as_ours(theirs, 'auto') if number >= STEPS.index('backbone') else theirs
    if 'pretrained' in described:
        described.pretrained = None
    restore_layers(described, scope)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(scope):
        model: nn.Module = MODELS.build(described)
    if number >= STEPS.index('layers'):
        replace_layers(model)
    if number >= STEPS.index('convolutions'):
        prepare_convolutions(model)
    return model


def predict_once(cfg: Config, model: Any, pictures: list[Tensor], bfloat16: bool) -> object:
    amp_context = mixed_precision(model) if bfloat16 else nullcontext()
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), torch.no_grad(), amp_context:
        return model.test_step(dict(inputs=pictures, data_samples=[sample_of(cfg, x) for x in pictures]))


def train_once(cfg: Config, model: Any, pictures: list[Tensor], bfloat16: bool) -> None:
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        samples = [truth_of(cfg, x) for x in pictures]
        data = model.data_preprocessor(dict(inputs=pictures, data_samples=samples), True)
        with mixed_precision(model) if bfloat16 else nullcontext():
            losses = model(**data, mode='loss')
        model.parse_losses(losses)[0].backward()
    model.zero_grad(set_to_none=True)


def sample_of(cfg: Config, picture: Tensor) -> Any:
    shape = tuple(picture.shape[1:])
    meta = dict(img_shape=shape, ori_shape=shape, pad_shape=shape, scale_factor=(1.0, 1.0), batch_input_shape=shape)
    if cfg.get('default_scope') == 'mmseg':
        from mmseg.structures import SegDataSample

        return SegDataSample(metainfo=meta)
    from mmdet.structures import DetDataSample

    return DetDataSample(metainfo=meta)


def truth_of(cfg: Config, picture: Tensor) -> Any:
    """Return a sample with ten random objects, or random labels."""
    if cfg.get('default_scope') == 'mmseg':
        sample = sample_of(cfg, picture)
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 2, (1, *picture.shape[1:])))
        return sample
    from mmdet.testing import demo_mm_inputs

    np.random.seed(0)
    made = demo_mm_inputs(1, [list(picture.shape)], [10], num_classes=3, with_mask=True)
    return made['data_samples'][0]


def exported_run(folder: str, picture: Tensor, threads: Optional[int]) -> Run:
    """Return a function that runs an exported whole model once, with the resizing of the test pipeline."""
    from swin_backbone.workbench.export.runtime import RuntimeModel

    model, pixels = RuntimeModel(folder, threads=threads), picture.permute(1, 2, 0).numpy()[..., ::-1]
    return lambda: list(model.predict([np.ascontiguousarray(pixels)]))


if __name__ == '__main__':
    run(main)
