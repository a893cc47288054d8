"""Print the compiled library's time by kind of work: python -m benchmarks.backbones --profile.

A library with clocks inside is compiled in a minute, and runs on one thread. The floor of products
is a bare loop of multiply-adds. The floor of all other work is a copy within the L2 cache. The floor of AMX is unknown.
"""

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from csrc import build
from swin_backbone import SwinBackbone
from swin_backbone.kernels.native import library, memory

# In the order of `Work` in csrc/machine/profile.h. A norm reads tokens from the map, a residual sum writes tokens back.
KINDS = (
    *('other', 'products', 'softmax', 'GELU', 'norms, gather', 'heads'),
    *('residuals, scatter', 'packing', 'weights', 'quantising'),
)
RUNS = 5


class Row(NamedTuple):
    """Milliseconds of one kind of work in a run, and the floor of this work."""

    kind: str
    ms: float
    floor_ms: float


def use_clocks(folder: Path) -> ctypes.CDLL:
    """Compile the library with clocks into `folder`, and load this copy in the process."""
    loaded, reason = library.load()
    if loaded is None:
        raise ValueError(reason)
    target = build.target()
    path, sets = folder / build.NAMES[target.system], build.INSTRUCTION_SETS[target.machine]
    build.INSTRUCTION_SETS[target.machine] = {loaded.isa: sets[loaded.isa]}  # compile one set
    build.SOURCES = Path(__file__).parents[1] / 'csrc'
    build.link_library(path, build.compile_sources(folder, target, ['-DSWIN_PROFILE']), target, [])
    build.INSTRUCTION_SETS[target.machine] = sets
    library.PATH = path
    library.load.cache_clear()
    return ctypes.CDLL(str(path))


def measure(clocks: ctypes.CDLL, run: Callable[[], object], pairs: bool) -> list[Row]:
    """Return a row for each kind of work of `run`.

    Args:
        pairs: if true, the floor of products is halved: instructions multiply pairs of bfloat16 numbers.
    """
    operations, numbers, seconds, amount = (ctypes.c_double() for _ in range(4))
    clocks.swin_profile_peaks(ctypes.byref(operations), ctypes.byref(numbers))
    run()
    for kind in range(len(KINDS)):
        clocks.swin_profile(kind, ctypes.byref(seconds), ctypes.byref(amount))
    for _ in range(RUNS):
        run()
    rows = []
    for kind, name in enumerate(KINDS):
        clocks.swin_profile(kind, ctypes.byref(seconds), ctypes.byref(amount))
        peak = operations.value * (1 + pairs) if name == 'products' else numbers.value
        rows.append(Row(name, 1e3 * seconds.value / RUNS, 1e3 * amount.value / peak / RUNS))
    return [row for row in rows if row.ms]


def show(rows: list[Row], title: str) -> None:
    """Print the rows as a table."""
    table = Table(title=title)
    for column in ('work', 'ms', 'share', 'floor, ms', 'of the floor'):
        table.add_column(column, justify='left' if column == 'work' else 'right')
    total = sum(row.ms for row in rows)
    for row in [*rows, Row('all', total, sum(row.floor_ms for row in rows))]:
        share, times = f'{row.ms / total:.1%}', f'{row.ms / row.floor_ms:.2f}' if row.floor_ms else ''
        table.add_row(row.kind, f'{row.ms:.1f}', share, f'{row.floor_ms:.1f}', times)
    Console().print(table)


def profile(arch: str, sizes: Sequence[tuple[int, int]], dtype: torch.dtype, train: bool) -> None:
    """Print a table of a backbone's forward pass, or training step, for each size (H, W)."""
    torch.set_num_threads(1)
    model = SwinBackbone(arch=arch, drop_path_rate=0.0).train(train)
    kind = 'training step' if train else 'forward'

    def run(x_BCHW: Tensor) -> None:
        with torch.autocast('cpu', dtype, enabled=dtype is not torch.float32), torch.set_grad_enabled(train):
            maps = model(x_BCHW)
        if train:
            torch.autograd.backward(maps, [torch.ones_like(y) for y in maps])

    with tempfile.TemporaryDirectory() as folder:
        clocks = use_clocks(Path(folder))
        for H, W in sizes:
            pairs = dtype is torch.bfloat16 and memory.libswin().multiplies_bfloat16
            rows = measure(clocks, partial(run, torch.randn(1, 3, H, W)), pairs)
            show(rows, f'Swin {arch}, {kind}, {H}x{W}, {dtype}, {memory.libswin().isa}, one thread')
