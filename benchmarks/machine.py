"""Checks of the machine before a timing: other programs, and the spread of a loop."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import torch

# Limit of the interquartile range of a loop's times, by the median.
WIDEST_SPREAD = 0.05
LOOPS = 40


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of a large matrix product."""
    side = 8192 if device.type == 'cuda' else 512
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / _seconds(lambda: a @ b, device)


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Return the median seconds of ten runs, after two runs of warm-up."""
    seconds = []
    for _ in range(12):
        begin = time.perf_counter()
        run()
        if device.type == 'cuda':
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])


def pin_threads(threads: Optional[int]) -> None:
    """Set the number of torch's threads (default: torch's choice), and keep the process on as many CPUs."""
    torch.set_num_threads(threads or torch.get_num_threads())
    if hasattr(os, 'sched_setaffinity'):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: torch.get_num_threads()])


def why_not_quiet() -> Optional[str]:
    """Return the reason against a timing now, or None for a quiet machine, after one or two seconds."""
    others = _running_beside_this()
    if others >= 1:
        return f'{others:.0f} other threads are running'
    x, seconds = torch.randn(256, 256), []
    for _ in range(LOOPS):
        begin = time.perf_counter()
        for _ in range(20):
            x @ x
        seconds.append(time.perf_counter() - begin)
    low, middle, high = statistics.quantiles(seconds[LOOPS // 4 :], n=4)  # without the warm-up
    spread = (high - low) / middle
    if spread > WIDEST_SPREAD:
        return f'the same loop takes times that differ by {spread:.0%} (at most {WIDEST_SPREAD:.0%} is quiet)'
    return None


def require_quiet() -> None:
    """Raise a ValueError if the machine is not quiet."""
    reason = why_not_quiet()
    if reason is not None:
        raise ValueError(f'times taken now would mean little: {reason}. Take them later, or add --busy-machine')


def _running_beside_this() -> float:
    """Return the median number of other running threads over a second, or 0 without /proc."""
    counts = []
    for _ in range(50):
        time.sleep(0.02)
        try:
            counts.append(int(Path('/proc/loadavg').read_text().split()[3].split('/')[0]) - 1)  # without this thread
        except OSError:
            return 0.0
    return statistics.median(counts)
