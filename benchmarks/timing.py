"""Time and memory of backbones, in alternating runs: the speed of a machine changes by the minute."""

import ctypes
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from csrc import build
from swin_backbone import SwinBackbone
from swin_backbone.kernels.native import library

# In the order of `Work` in csrc/machine/profile.h. A norm reads tokens from the map, a residual sum writes tokens back.
KINDS = (
    *('other', 'products', 'softmax', 'GELU', 'norms, gather', 'heads'),
    *('residuals, scatter', 'packing', 'weights', 'quantising'),
)
PROFILED_RUNS = 5


class Spread(NamedTuple):
    """Seconds of several runs."""

    median: float
    fastest: float
    slowest: float


def make_run(model: nn.Module, x_BCHW: Tensor, train: bool, dtype: torch.dtype) -> Callable[[], None]:
    """Return a function: a forward in eval mode, or forward and backward in training mode; autocast below float32."""
    model.train(train)
    kind = x_BCHW.device.type

    def run() -> None:
        with torch.autocast(kind, dtype, enabled=dtype != torch.float32), torch.set_grad_enabled(train):
            maps = model(x_BCHW)
        if train:
            torch.autograd.backward(maps, [torch.ones_like(x) for x in maps])
            model.zero_grad(set_to_none=True)
        if kind == 'cuda':
            torch.cuda.synchronize(x_BCHW.device)

    return run


def alternate(
    runs: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2, pause: float = 0.0
) -> dict[str, Spread]:
    """Return the times of all runs, in turn, `rounds` times.

    Args:
        pause: seconds before a run. The threads of ONNX Runtime spin after a run, and slow the next run of another.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(-warm_up, rounds):
        for name, run in runs.items():
            time.sleep(pause)
            begin = time.perf_counter()
            run()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
    return {name: Spread(statistics.median(s), min(s), max(s)) for name, s in seconds.items()}


def bytes_kept(model: nn.Module, x_BCHW: Tensor, dtype: torch.dtype) -> int:
    """Return the bytes that a training forward keeps for backward, without parameters and image."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x_BCHW)}
    kept: dict[int, Tensor] = {}  # the tensors stay alive, and addresses unique

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    model.train()
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast(x_BCHW.device.type, dtype, enabled=dtype != torch.float32),
    ):
        maps = model(x_BCHW)
    del maps
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def peak_device_growth(run: Callable[[], None], device: torch.device) -> int:
    """Return the peak bytes of a run on a CUDA device, beyond the bytes before the run."""
    run()  # allocates workspaces of libraries and tables of indices
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_rss_growth(build: Callable[[], nn.Module], shape: tuple[int, ...], threads: Optional[int] = None) -> int:
    """Return the peak growth in bytes of a fresh process in a forward in eval mode.

    Args:
        build: makes the model; picklable.
        shape: shape of the images.
    """
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        return pool.apply(_rss_growth, (build, shape, threads or torch.get_num_threads()))


def _rss_growth(build: Callable[[], nn.Module], shape: tuple[int, ...], threads: int) -> int:
    torch.set_num_threads(threads)
    model, x_BCHW = build().eval(), torch.randn(shape)
    with torch.no_grad():
        model(torch.randn(shape[0], shape[1], 64, 64))  # allocates everything that does not depend on the size
        before = peak_rss()
        model(x_BCHW)
    return peak_rss() - before


def peak_rss() -> int:
    """Return the peak of this process's resident memory in bytes.

    Linux: from /proc, because `getrusage` includes the peak of the parent process.
    """
    status = Path('/proc/self/status')
    lines = status.read_text().splitlines() if status.is_file() else []
    for line in lines:
        if line.startswith('VmHWM:'):
            return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else 1024 * peak


# --- by kind of work -------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Milliseconds of one kind of work in a run, and the floor of this work."""

    kind: str
    ms: float
    floor_ms: float


def use_clocks(folder: Path) -> ctypes.CDLL:
    """Compile the library with clocks into `folder`, and load this copy in the process."""
    loaded, reason = library.load_library()
    if loaded is None:
        raise ValueError(reason)
    target = build.target()
    path, sets = folder / build.NAMES[target.system], build.INSTRUCTION_SETS[target.machine]
    build.INSTRUCTION_SETS[target.machine] = {loaded.isa: sets[loaded.isa]}  # compile one set
    build.SOURCES = Path(__file__).parents[1] / 'csrc'
    build.link_library(path, build.compile_sources(folder, target, ['-DSWIN_PROFILE']), target, [])
    build.INSTRUCTION_SETS[target.machine] = sets
    library.PATH = path
    library.load_library.cache_clear()
    return ctypes.CDLL(str(path))


def measure_kinds(clocks: ctypes.CDLL, run: Callable[[], object], pairs: bool) -> list[Row]:
    """Return a row for each kind of work of `run`.

    Args:
        pairs: if true, the floor of products is halved: instructions multiply pairs of bfloat16 numbers.
    """
    operations, numbers, seconds, amount = (ctypes.c_double() for _ in range(4))
    clocks.swin_profile_peaks(ctypes.byref(operations), ctypes.byref(numbers))
    run()
    for kind in range(len(KINDS)):
        clocks.swin_profile(kind, ctypes.byref(seconds), ctypes.byref(amount))
    for _ in range(PROFILED_RUNS):
        run()
    rows = []
    for kind, name in enumerate(KINDS):
        clocks.swin_profile(kind, ctypes.byref(seconds), ctypes.byref(amount))
        peak = operations.value * (1 + pairs) if name == 'products' else numbers.value
        rows.append(Row(name, 1e3 * seconds.value / PROFILED_RUNS, 1e3 * amount.value / peak / PROFILED_RUNS))
    return [row for row in rows if row.ms]


def print_rows(rows: list[Row], title: str) -> None:
    """Print the rows as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in ('work', 'ms', 'share', 'floor, ms', 'of the floor'):
        table.add_column(column, justify='left' if column == 'work' else 'right')
    total = sum(row.ms for row in rows)
    for row in [*rows, Row('all', total, sum(row.floor_ms for row in rows))]:
        share, times = f'{row.ms / total:.1%}', f'{row.ms / row.floor_ms:.2f}' if row.floor_ms else ''
        table.add_row(row.kind, f'{row.ms:.1f}', share, f'{row.floor_ms:.1f}', times)
    Console().print(table)


def print_profile(arch: str, sizes: Sequence[tuple[int, int]], dtype: torch.dtype, train: bool) -> None:
    """Print the compiled library's time by kind of work, in a forward or training step, for each size (H, W).

    A library with clocks inside is compiled in a minute, and runs on one thread. The floor of products is a bare loop
    of multiply-adds. The floor of all other work is a copy within the L2 cache. The floor of AMX is unknown.
    """
    torch.set_num_threads(1)
    model = SwinBackbone(arch=arch, drop_path_rate=0.0)
    kind = 'training step' if train else 'forward'
    with tempfile.TemporaryDirectory() as folder:
        clocks = use_clocks(Path(folder))
        for H, W in sizes:
            pairs = dtype is torch.bfloat16 and library.get_libswin().has_bf16_gemm
            rows = measure_kinds(clocks, make_run(model, torch.randn(1, 3, H, W), train, dtype), pairs)
            print_rows(rows, f'Swin {arch}, {kind}, {H}x{W}, {dtype}, {library.get_libswin().isa}, one thread')
