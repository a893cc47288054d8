"""Repeat table 4 of the paper (Liu et al. 2021) on a small scale: what shifted windows and the position bias improve.

    python tools/ablate.py [--seeds N] [--steps N] [--out D] [--docs docs/measurements/ablations.md]

A Swin-nano of window 4 learns to classify the shapes of tools/make_shapes_dataset.py. Each shape is cut out of its
picture and turned grey, since its colour would show its class. Every row is trained with the same seeds. A run whose
result is in D already is not repeated, so an interrupted table continues where it stopped.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from make_shapes_dataset import SHAPES, draw_picture
from mmengine.logging import MMLogger
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from swin_backbone import SwinBackbone
from swin_backbone.command_line import positive, run, stop_on_user_errors
from swin_backbone.whole_files import write_between, write_whole

PICTURE, SIZE, WINDOW = 128, 64, 4  # sides of a picture and of a cut-out, in pixels; side of a window, in tokens
TRAIN, VAL, BATCH = 1600, 800, 32  # training pictures, validation pictures, shapes in a step
MARGIN = 1.2  # side of a cut-out, as a multiple of the longer side of the shape's box
LEARNING_RATE, WEIGHT_DECAY, WARM_UP = 2e-3, 0.05, 0.1
BEGIN, END = '<!-- table: tools/ablate.py writes it -->', '<!-- end of table -->'
console = Console()


class Row(NamedTuple):
    """A row of the table: its name, what is removed, and whether there is an absolute position embedding."""

    name: str
    take_away: tuple[Callable[[SwinBackbone], None], ...] = ()
    absolute: bool = False


def no_shift(backbone: SwinBackbone) -> None:
    for stage in backbone.stages:
        for block in stage.blocks:
            block.cut = block.cut._replace(shift=(0, 0))


def no_relative_bias(backbone: SwinBackbone) -> None:
    for stage in backbone.stages:
        for block in stage.blocks:
            block.attn.w_msa.relative_position_bias_table.requires_grad_(False).zero_()


ROWS = {
    'no-shift': Row('windows that do not shift, relative position bias', (no_shift,)),
    'no-position': Row('shifted windows, no position', (no_relative_bias,)),
    'absolute': Row('shifted windows, absolute position embedding', (no_relative_bias,), absolute=True),
    'both': Row('shifted windows, absolute embedding and relative bias', absolute=True),
    'swin': Row('**shifted windows, relative position bias: Swin**'),
}


class Classifier(nn.Module):
    """A backbone with a linear layer on the mean of its last map."""

    def __init__(self, row: Row):
        super().__init__()
        self.backbone = SwinBackbone(
            arch='nano',
            in_channels=1,
            window_size=WINDOW,
            out_indices=(3,),
            drop_path_rate=0.0,
            use_abs_pos_embed=row.absolute,
            pretrain_img_size=SIZE,
            strip_tokens=None,
            init_cfg=dict(type='Xavier', layer='Linear', distribution='normal'),  # 0.02 is for widths of 96 and more
        )
        self.backbone.init_weights()
        for take_away in row.take_away:
            take_away(self.backbone)
        self.head = nn.Linear(self.backbone.out_channels[-1], len(SHAPES))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """The logits of each shape, (B, shapes)."""
        logits: Tensor = self.head(self.backbone(x_BCHW)[-1].mean((2, 3)))
        return logits


def draw(split: str, number: int) -> tuple[Tensor, Tensor]:
    """Cut the shapes out of `number` pictures: (shapes, 1, H, W), each of mean 0 and deviation 1; and their labels."""
    cuts, labels = [], []
    for index in range(number):
        picture, number_at, shapes = draw_picture(np.random.default_rng([0, split == 'val', index]), PICTURE)
        grey = picture.mean(axis=2, dtype=np.float32)
        for position, shape in enumerate(shapes, 1):
            cuts.append(cut_out(grey, number_at == position))
            labels.append(shape)
    x_B1HW = torch.from_numpy(np.stack(cuts))[:, None]
    x_B1HW = x_B1HW - x_B1HW.mean((1, 2, 3), keepdim=True)
    return x_B1HW / x_B1HW.std((1, 2, 3), keepdim=True), torch.tensor(labels)


def cut_out(grey: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The square around a mask, resized to (SIZE, SIZE)."""
    ends = [(indices.min(), indices.max()) for indices in reversed(np.nonzero(mask))]  # columns, rows
    scale = SIZE / (MARGIN * max(1 + stop - start for start, stop in ends))
    moved = [SIZE / 2 - scale * (start + stop) / 2 for start, stop in ends]
    matrix = np.array([[scale, 0, moved[0]], [0, scale, moved[1]]])
    return cv2.warpAffine(grey, matrix, (SIZE, SIZE), borderMode=cv2.BORDER_REFLECT).astype(np.float32, copy=False)


def train(row: Row, seed: int, steps: int, images: Tensor, labels: Tensor, progress: Progress) -> Classifier:
    torch.manual_seed(seed)
    model = Classifier(row).train()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=WARM_UP, cycle_momentum=False
    )
    task = progress.add_task(f'{row.name.strip("*")}, seed {seed}', total=steps, loss=float('nan'))
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH,))
        flipped = torch.rand(BATCH, 1, 1, 1) < 0.5
        x_BCHW = torch.where(flipped, images[chosen].flip(-1), images[chosen])
        loss = F.cross_entropy(model(x_BCHW), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 5.0)
        optimizer.step()
        schedule.step()
        progress.update(task, advance=1, loss=loss.item())
    progress.remove_task(task)
    return model.eval()


@torch.no_grad()
def evaluate(model: Classifier, images: Tensor, labels: Tensor) -> dict[str, float]:
    """The top-1 accuracy in per cent, and the mean cross entropy."""
    logits = torch.cat([model(x_BCHW) for x_BCHW in images.split(100)])
    top1 = (logits.argmax(1) == labels).double().mean()
    return dict(top1=100 * top1.item(), loss=F.cross_entropy(logits, labels).item())


def result_file(out: Path, name: str, seed: int, steps: int) -> Path:
    return out / f'{name}_steps{steps}_seed{seed}.json'


def run_all(args: argparse.Namespace) -> None:
    wanted = [
        (seed, name, result_file(args.out, name, seed, args.steps)) for seed in range(args.seeds) for name in ROWS
    ]
    missing = [entry for entry in wanted if not entry[2].exists()]
    console.print(f'{len(wanted) - len(missing)} of {len(wanted)} runs are there already', highlight=False)
    if not missing:
        return
    MMLogger.get_current_instance().setLevel('WARNING')  # else it logs how each weight was initialised
    training, held_out = draw('train', TRAIN), draw('val', VAL)
    args.out.mkdir(parents=True, exist_ok=True)
    columns = TextColumn('{task.description}'), BarColumn(), TextColumn('loss {task.fields[loss]:.3f}')
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        for seed, name, path in missing:
            begin = time.perf_counter()
            model = train(ROWS[name], seed, args.steps, *training, progress)
            figures = evaluate(model, *held_out) | dict(seconds=time.perf_counter() - begin)
            write_whole(path, json.dumps(figures).encode())
            console.print(f'{name}, seed {seed}: top-1 {figures["top1"]:.2f} %', highlight=False)


def table(args: argparse.Namespace) -> str:
    """Mean and standard deviation over the seeds, as a table in Markdown."""
    lines = [
        f'| {args.seeds} seeds, {args.steps} steps of {BATCH} shapes | top-1, % | cross entropy |',
        '|---|---:|---:|',
    ]
    for name, row in ROWS.items():
        paths = [result_file(args.out, name, seed, args.steps) for seed in range(args.seeds)]
        found = [json.loads(path.read_text()) for path in paths]
        top1, loss = ([figures[key] for figures in found] for key in ('top1', 'loss'))
        lines.append(f'| {row.name} | {spread(top1, 1)} | {spread(loss, 2)} |')
    return '\n'.join(lines)


def spread(values: list[float], digits: int) -> str:
    deviation = f' ± {statistics.stdev(values):.{digits}f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.{digits}f}{deviation}'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=positive, default=3, metavar='N', help='runs of each row (default: 3)')
    parser.add_argument('--steps', type=positive, default=400, metavar='N', help='steps of a run (default: 400)')
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/ablate'),
        metavar='D',
        help='folder of results, one file for each run',
    )
    parser.add_argument('--docs', type=Path, metavar='F', help='a document to write the table to, between its markers')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    with stop_on_user_errors():
        run_all(args)
        text = table(args)
        print(text)
        if args.docs:
            write_between(args.docs, BEGIN, END, text)


if __name__ == '__main__':
    run(main)
