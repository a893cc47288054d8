"""Choose the library of operators for this processor, load it and check that it works."""

import os
import platform
import sys
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Optional

import torch

SWITCH = 'SWIN_BACKBONE_NATIVE'
DTYPES = (torch.float32, torch.bfloat16)


@lru_cache(maxsize=len(DTYPES) + 1)
def why_not_in(dtype: torch.dtype) -> Optional[str]:
    """Why the operators do not compute in `dtype`, in one sentence; None: they do. The answer is cached."""
    if dtype not in DTYPES:
        return f'The compiled operators compute in float32 and bfloat16, not {dtype}.'
    instruction_set, reason = _load()
    if instruction_set is None:
        return reason
    flags = _processor_flags()
    if dtype == torch.bfloat16:
        if instruction_set != 'avx512_bf16':
            return 'The compiled operators need AVX-512 with bf16 to compute in bfloat16.'
        if 'amx_bf16' not in flags and os.environ.get(SWITCH) != 'all':
            return f'bfloat16 by AVX-512 without AMX has not been measured; {SWITCH}=all takes it.'
    try:
        torch.ops.swin_backbone.embed(*_sample(dtype))
    except RuntimeError as error:  # for example, oneDNN is set to use fewer instruction sets than there are
        return f'The compiled operators do not run in {dtype}: {str(error).splitlines()[0]}.'
    return None


@lru_cache(maxsize=1)
def _load() -> tuple[Optional[str], Optional[str]]:
    """Load the best library that the processor, torch and its environment variables allow.

    Returns:
        Its instruction set and None; or None and the reason why no library was loaded.
    """
    if os.environ.get(SWITCH) == '0':
        return None, f'{SWITCH}=0 is set.'
    if sys.platform != 'linux' or platform.machine() != 'x86_64':
        return None, 'The compiled operators are for Linux on x86-64.'
    wanted = _best_instruction_set()
    if wanted is None:
        return None, 'The compiled operators need AVX2 or AVX-512.'
    major, minor = torch.__version__.split('.')[:2]
    name = f'_{wanted}_torch_{major}_{minor}'
    found = [path for suffix in EXTENSION_SUFFIXES if (path := Path(__file__).with_name(name + suffix)).is_file()]
    if not found:
        return None, f'The compiled operators are not built for torch {major}.{minor}: reinstall swin_backbone.'
    try:
        torch.ops.load_library(str(found[0]))
    except OSError as error:
        return None, f'The compiled operators do not load: {error.__cause__ or error}.'
    try:
        from . import fake  # noqa: F401  registers what torch.compile and export see
    except RuntimeError:  # an operator is missing
        return None, 'The compiled operators were built for another version of swin_backbone: reinstall it.'
    return wanted, None


def _best_instruction_set() -> Optional[str]:
    capability = torch.backends.cpu.get_cpu_capability()  # it respects ATEN_CPU_CAPABILITY
    if capability.startswith('AVX512'):
        return 'avx512_bf16' if 'avx512_bf16' in _processor_flags() else 'avx512'
    return 'avx2' if capability == 'AVX2' else None


@lru_cache(maxsize=1)
def _processor_flags() -> frozenset[str]:
    try:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith('flags')), '').split())


def _sample(dtype: torch.dtype) -> tuple:
    """Arguments of a very small patch embedding, to try the operators."""
    packed = torch.ops.swin_backbone.pack_linear(torch.zeros(16, 32), dtype, 1)
    return torch.zeros(1, 2, 4, 4), packed, None, None, None, None, [4, 4]
