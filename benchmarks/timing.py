"""Time and memory of backbones: as ratios in one alternating run, because a machine's speed changes by the minute."""

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn


class Spread(NamedTuple):
    """Seconds of several runs."""

    median: float
    fastest: float
    slowest: float


def make_run(
    model: nn.Module, x_BCHW: Tensor, train: bool, dtype: torch.dtype, wait: bool = True
) -> Callable[[], None]:
    """One forward in eval mode, or one forward and backward in training mode; below float32 under autocast.

    Args:
        wait: until a CUDA device has done it.
    """
    model.train(train)
    kind = x_BCHW.device.type

    def run() -> None:
        with torch.autocast(kind, dtype, enabled=dtype != torch.float32), torch.set_grad_enabled(train):
            maps = model(x_BCHW)
        if train:
            torch.autograd.backward(maps, [torch.ones_like(x) for x in maps])
            model.zero_grad(set_to_none=True)
        if kind == 'cuda' and wait:
            torch.cuda.synchronize(x_BCHW.device)

    return run


def alternate(runs: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2) -> dict[str, Spread]:
    """Time each in turn, `rounds` times over, so that all meet the machine's slow and quick minutes alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(-warm_up, rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
    return {name: Spread(statistics.median(s), min(s), max(s)) for name, s in seconds.items()}


def bytes_kept(model: nn.Module, x_BCHW: Tensor, dtype: torch.dtype) -> int:
    """Bytes that a forward in training mode keeps for backward: each storage once, and no parameter or image."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x_BCHW)}
    kept: dict[int, Tensor] = {}  # holds the tensors, so that no two storages get one address

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
    """Bytes that a run takes on a CUDA device at its peak, beyond what is there before and after it."""
    run()  # what is allocated once, workspaces of libraries and tables of indices
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_rss_growth(build: Callable[[], nn.Module], shape: tuple[int, ...], threads: Optional[int] = None) -> int:
    """Bytes by which a fresh process grows at its peak in one forward in eval mode.

    Args:
        build: makes the model; must be picklable.
        shape: of the images.
    """
    with multiprocessing.get_context('spawn').Pool(1) as pool:
        return pool.apply(_rss_growth, (build, shape, threads or torch.get_num_threads()))


def _rss_growth(build: Callable[[], nn.Module], shape: tuple[int, ...], threads: int) -> int:
    torch.set_num_threads(threads)
    model, x_BCHW = build().eval(), torch.randn(shape)
    with torch.no_grad():
        model(torch.randn(shape[0], shape[1], 64, 64))  # what is allocated once, whatever the size
        before = peak_rss()
        model(x_BCHW)
    return peak_rss() - before


def peak_rss() -> int:
    """Bytes of resident memory that this process has had at its peak.

    Linux says so in /proc; its `getrusage` does not, since it counts the peak of the process that started this one.
    """
    status = Path('/proc/self/status')
    lines = status.read_text().splitlines() if status.is_file() else []
    for line in lines:
        if line.startswith('VmHWM:'):
            return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else 1024 * peak
