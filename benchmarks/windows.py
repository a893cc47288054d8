"""Repeat table 5 of the paper (Liu et al. 2021): the time or memory of each way to attend in windows.

    python -m benchmarks.windows [--size HxW] [--train | --memory] [--arch tiny] [--runs N] [--threads N]
        [--busy-machine]

The same Swin with the same weights attends in these ways: in sliding windows, one around each token; in windows that
do not shift; in windows shifted by padding, which adds windows; in windows shifted cyclically, by rolling maps and with
masks for all windows; and as this package does, without and with its compiled operators. The other ways are written as
in the paper, without optimisation. The blocks of each stage are timed, and a whole backbone.
With --memory: how much a training step stores for backward, and how much a process grows in a forward.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Optional, Union

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from swin_backbone import ARCHS, SwinBackbone
from swin_backbone.backends import Backend
from swin_backbone.backends.graph import Graph, RolledWindows
from swin_backbone.backends.reference import window_partition, window_reverse
from swin_backbone.command_line import positive, run, size, stop_on_user_errors
from swin_backbone.devices import processor
from swin_backbone.models.pyramid import SwinStage
from swin_backbone.windows.grid import Geometry

from . import machine, timing

console = Console()


class SlidingWindows(RolledWindows):
    """Each token has its own window around it: keys and values of all its places are copied for each token."""

    def pad(self, x_BHWC: Tensor, by_bias: bool = False) -> Tensor:
        """The maps unchanged: sliding windows need no padding to whole windows."""
        return x_BHWC

    def attend(
        self, qkv_BHW3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Optional[Tensor] = None
    ) -> Tensor:
        """Softmax over the places of the map that are in each token's own window."""
        (Wh, Ww), h, N = self.window_size, len(bias_hNN), bias_hNN.shape[-1]
        q_BCHW, k_BCHW, v_BCHW = qkv_BHW3C.permute(0, 3, 1, 2).chunk(3, dim=1)
        around = dict(kernel_size=(Wh, Ww), padding=(Wh // 2, Ww // 2))
        k_BhdNT, v_BhdNT = (F.unfold(x, **around).unflatten(1, (h, -1, N)) for x in (k_BCHW, v_BCHW))
        on_map_NT = F.unfold(torch.ones_like(k_BCHW[:1, :1]), **around)[0] > 0
        q_BhdT = q_BCHW.flatten(2).unflatten(1, (h, -1))
        logits_BhNT = scale * torch.einsum('bhdt,bhdnt->bhnt', q_BhdT, k_BhdNT) + bias_hNN[:, N // 2, :, None]
        weights_BhNT = logits_BhNT.masked_fill(~on_map_NT, -torch.inf).softmax(2)
        x_BCT = torch.einsum('bhnt,bhdnt->bhdt', weights_BhNT, v_BhdNT).flatten(1, 2)
        return x_BCT.transpose(1, 2).reshape(q_BCHW.shape[0], *self.size, -1)


class UnshiftedWindows(RolledWindows):
    """Windows that do not shift."""

    def __init__(self, geometry: Geometry):
        super().__init__(geometry._replace(shift=(0, 0)))


class PaddedWindows(RolledWindows):
    """Shifted windows begin before the map and end after it, where no token is attended to: one more on each axis."""

    def attend(
        self, qkv_BHW3C: Tensor, bias_hNN: Tensor, scale: float, dropout: float, qkv_bias_3C: Optional[Tensor] = None
    ) -> Tensor:
        """Softmax over the places of each window that are on the map."""
        if not any(self.shift):
            return super().attend(qkv_BHW3C, bias_hNN, scale, dropout)
        (Wh, Ww), (behind_y, behind_x) = self.window_size, self.shift
        before_y, before_x = Wh - behind_y, Ww - behind_x
        around = (0, 0, before_x, behind_x, before_y, behind_y)
        on_map_1HW1 = F.pad(torch.ones_like(qkv_BHW3C[:1, ..., :1]), around)
        qkv_BHW3C = F.pad(qkv_BHW3C, around)
        size = qkv_BHW3C.shape[1], qkv_BHW3C.shape[2]
        on_map_LN = window_partition(on_map_1HW1, self.window_size)[..., 0].repeat(self.batch, 1) > 0
        qkv_LN3C = window_partition(qkv_BHW3C, self.window_size)
        q, k, v = qkv_LN3C.unflatten(-1, (3, len(bias_hNN), -1)).permute(2, 0, 3, 1, 4)
        logits_LhNN = (scale * q @ k.transpose(-2, -1) + bias_hNN).masked_fill(~on_map_LN[:, None, None], -torch.inf)
        x_LNC = (logits_LhNN.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x_BHWC = window_reverse(x_LNC, self.window_size, size)
        return x_BHWC[:, before_y : before_y + self.size[0], before_x : before_x + self.size[1]]


class Literal(Graph):
    """Whole maps, with windows of one kind."""

    def __init__(self, kind: type[RolledWindows]):
        self.kind = kind

    def windows(self, geometry: Geometry, kind: str) -> RolledWindows:
        """See `Backend`."""
        return self.kind(geometry)


WAYS: dict[str, Union[str, Backend]] = {
    'sliding windows': Literal(SlidingWindows),
    'windows that do not shift': Literal(UnshiftedWindows),
    'windows shifted by padding': Literal(PaddedWindows),
    'windows shifted cyclically': Literal(RolledWindows),
    'this package, by torch': 'eager',
    'this package': 'auto',
}


class Blocks(nn.Module):
    """The blocks of one stage, as a model."""

    def __init__(self, stage: SwinStage):
        super().__init__()
        self.stage = stage

    def forward(self, x_BHWC: Tensor) -> tuple[Tensor]:
        """Run the blocks on a batch of maps; the output has the same shape."""
        return (self.stage(x_BHWC, self.stage.plan(x_BHWC)),)


def build(way: str, arch: str) -> SwinBackbone:
    """A backbone that attends in one of the ways; all ways get the same weights."""
    torch.manual_seed(0)
    return SwinBackbone(arch=arch, drop_path_rate=0.0, backend=WAYS[way])


def measure_times(args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds for the blocks of each stage, and for a whole backbone."""
    images = torch.randn(1, 3, *args.size)
    backbones = {way: build(way, args.arch) for way in WAYS}
    medians: dict[str, list[float]] = {way: [] for way in WAYS}
    parts = [{way: Blocks(backbone.stages[i]) for way, backbone in backbones.items()} for i in range(4)]
    height, width = (-(-length // 4) for length in args.size)
    in_turn: list[Mapping[str, nn.Module]] = [*parts, backbones]
    for number, models in enumerate(in_turn):
        x = images
        if number < 4:
            x = torch.randn(1, height, width, ARCHS[args.arch].embed_dims << number)
            height, width = -(-height // 2), -(-width // 2)
        runs = {way: timing.make_run(model, x, args.train, torch.float32) for way, model in models.items()}
        for way, seconds in timing.alternate(runs, args.runs, warm_up=1).items():
            medians[way].append(1e3 * seconds.median)
    return medians


def measure_memory(args: argparse.Namespace) -> dict[str, list[float]]:
    """MiB that a training step stores for backward, and MiB by which a process grows in a forward."""
    images = torch.randn(1, 3, *args.size)
    return {
        way: [
            timing.bytes_kept(build(way, args.arch), images, torch.float32) / 2**20,
            timing.peak_rss_growth(partial(build, way, args.arch), tuple(images.shape), args.threads) / 2**20,
        ]
        for way in WAYS
    }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', type=size, default=(448, 448), metavar='HxW', help='default: 448x448')
    what = parser.add_mutually_exclusive_group()
    what.add_argument('--train', action='store_true', help='forward and backward instead of forward in eval mode')
    what.add_argument('--memory', action='store_true', help='memory instead of time')
    parser.add_argument('--arch', choices=list(ARCHS), default='tiny', help='default: tiny')
    parser.add_argument('--runs', type=positive, default=5, metavar='N', help='timed runs of each (default: 5)')
    parser.add_argument('--threads', type=positive, metavar='N', help="torch's threads (default: its own choice)")
    parser.add_argument('--busy-machine', action='store_true', help='measure times even if other programs run')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    machine.pin_threads(args.threads)
    with stop_on_user_errors():
        reason = None if args.memory or args.busy_machine else machine.why_not_quiet()
        if reason is not None:
            raise ValueError(f'times taken now would mean little: {reason}. Take them later, or add --busy-machine')
        figures = measure_memory(args) if args.memory else measure_times(args)
    what = 'MiB' if args.memory else 'training step, ms' if args.train else 'forward, ms'
    title = f'Swin {args.arch}, {args.size[0]}x{args.size[1]}, {what}; {processor()}'
    columns = ['stored for backward', 'growth'] if args.memory else [*(f'stage {i}' for i in range(1, 5)), 'backbone']
    table = Table('way', *columns, title=title, title_justify='left')
    for way, values in figures.items():
        table.add_row(way, *(f'{value:.1f}' for value in values))
    console.print(table)


if __name__ == '__main__':
    run(main)
