"""Which devices there are, what the processor is, and how a process keeps memory."""

import ctypes
import os
import platform
from pathlib import Path

import torch


def processor() -> str:
    """The processor's name, its instruction sets as torch uses them, and the threads that torch takes."""
    lines = Path('/proc/cpuinfo').read_text().splitlines() if Path('/proc/cpuinfo').is_file() else []
    facts = dict(line.split(':', 1) for line in reversed(lines) if ':' in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    extra = [flag for flag in ('avx512_bf16', 'amx_bf16') if flag in facts.get('flags', '').split()]
    name = facts.get('model name') or platform.processor() or platform.machine()
    family = f' family {facts["cpu family"]} model {facts["model"]}' if {'cpu family', 'model'} <= facts.keys() else ''
    features = ', '.join([torch.backends.cpu.get_cpu_capability(), *extra])
    run_by = f'{os.cpu_count()} CPUs, {torch.get_num_threads()} threads, torch {torch.__version__}'
    return f'{name}{family} ({features}), {run_by}'


# Of glibc's malloc.h, and the values that keep memory.
KEEPING = {'M_MMAP_MAX': (-4, 0), 'M_TRIM_THRESHOLD': (-1, -1), 'M_TOP_PAD': (-2, 1 << 26), 'M_ARENA_MAX': (-8, 1)}


def keep_freed_memory() -> None:
    """Let this process use memory that it freed again, in place of giving it back; where malloc is glibc's.

    A map of more than 32 MB is memory that glibc gets from the kernel, and that goes back to it when the map is freed.
    So each such map costs a page fault for every 4 KB of it, in which the kernel fills the page with zeros. What the
    process holds does not shrink any more; its peak was 0 to 6 % higher (Swin-T in Mask R-CNN and UPerNet).
    """
    if platform.libc_ver()[0] == 'glibc':
        glibc = ctypes.CDLL(None)
        for parameter, value in KEEPING.values():
            glibc.mallopt(parameter, value)


def require_device(device: str) -> None:
    """See that something can be computed on a device.

    Raises:
        ValueError: if torch has no such device here.
    """
    try:
        if torch.empty(0, device=torch.device(device)).is_meta:
            raise RuntimeError('it computes nothing')
    except (RuntimeError, AssertionError) as error:  # the second where torch is a build without CUDA
        reason = str(error).partition('\n')[0]
        raise ValueError(
            f'device must be one that torch has here, as cpu or cuda:0, got {device!r}: {reason}'
        ) from error


def default_device() -> str:
    """Where a model predicts if nothing else is said: the first CUDA device, else the CPU."""
    return 'cuda:0' if torch.cuda.is_available() else 'cpu'
