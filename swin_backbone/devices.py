"""The processor, the devices, and the memory that a process keeps."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def processor() -> str:
    """Return a line with the processor's name and instruction sets, torch's threads and torch's version."""
    lines = Path('/proc/cpuinfo').read_text().splitlines() if Path('/proc/cpuinfo').is_file() else []
    facts = dict(line.split(':', 1) for line in reversed(lines) if ':' in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    extra = [flag for flag in ('avx512_bf16', 'amx_bf16') if flag in facts.get('flags', '').split()]
    name = facts.get('model name') or platform.processor() or platform.machine()
    family = f' family {facts["cpu family"]} model {facts["model"]}' if {'cpu family', 'model'} <= facts.keys() else ''
    features = ', '.join([torch.backends.cpu.get_cpu_capability(), *extra])
    threads = f'{os.cpu_count()} CPUs, {torch.get_num_threads()} threads, torch {torch.__version__}'
    return f'{name}{family} ({features}), {threads}'


# Parameters of glibc's malloc.h, with values that keep memory
MALLOC = {'M_MMAP_MAX': (-4, 0), 'M_TRIM_THRESHOLD': (-1, -1), 'M_TOP_PAD': (-2, 1 << 26), 'M_ARENA_MAX': (-8, 1)}


def keep_freed_memory() -> None:
    """Let glibc's malloc keep freed memory for this process.

    By default, glibc returns a freed map of more than 32 MB to the kernel. The next map then costs a page fault for
    every 4 KB, because the kernel fills pages with zeros. With this setting the process never shrinks; the peak was 0
    to 6 % higher (Swin-T in Mask R-CNN and UPerNet).
    """
    if platform.libc_ver()[0] == 'glibc':
        glibc = ctypes.CDLL(None)
        for parameter, value in MALLOC.values():
            glibc.mallopt(parameter, value)


def choose_device() -> str:
    """Return the first CUDA device, or the CPU without CUDA."""
    return 'cuda:0' if torch.cuda.is_available() else 'cpu'


class _LinspaceOnCpu(TorchFunctionMode):
    """Mode with `linspace` on the CPU: constructors read drop path rates from its numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.linspace:
            kwargs.setdefault('device', 'cpu')
        return func(*args, **kwargs)


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Make a device the default for new modules and tensors; 'meta' has shapes and no data."""
    with torch.device(device), _LinspaceOnCpu():
        yield
