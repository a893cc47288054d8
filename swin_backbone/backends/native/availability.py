"""Whether the compiled operators compute here, and why not."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Optional

import torch

from . import operators
from .library import ISA, PRODUCTS, load


@lru_cache(maxsize=len(PRODUCTS) + 1)
def why_not_in(dtype: torch.dtype) -> Optional[str]:
    """Return why the operators do not compute in `dtype`, in one sentence; None: they do. The answer is cached.

    Without instructions for bfloat16, numbers are rounded as by autocast, and multiplied in float32. float16 is
    computed in float32.
    """
    if dtype not in PRODUCTS:
        return f'The compiled operators compute in float32, bfloat16 and float16, not {dtype}.'
    library, reason = load()
    if library is None:
        return reason
    if library.isa == 'amx' and not multiplies(dtype):
        return f'AMX multiplies wrongly here: please report it. {ISA}=avx512_bf16 takes other instructions.'
    return None


def multiplies(dtype: torch.dtype) -> bool:
    """Whether the library's products are torch's, in a trial that takes a millisecond.

    What is written for AMX runs in the tests by emulation, on processors that have none.
    """
    with ThreadPoolExecutor(1) as thread:  # which has none of the modes of this one: fake tensors, autocast, a device
        return thread.submit(_multiplies, dtype).result()


def _multiplies(dtype: torch.dtype) -> bool:
    of_float32: dict[str, Any] = dict(dtype=torch.float32, device='cpu')
    image_BCHW = torch.linspace(-1, 1, 2 * 4 * 48 * 32, **of_float32).sin().view(2, 4, 48, 32)
    weight_OCHW = torch.linspace(-9, 9, 96 * 4 * 16 * 16, **of_float32).cos().view(96, 4, 16, 16)
    packed = operators.pack_linear(weight_OCHW, dtype, 1)
    found = operators.embed(image_BCHW, packed, None, None, None, None, (16, 16)).permute(0, 3, 1, 2)
    expected = torch.nn.functional.conv2d(image_BCHW.double(), weight_OCHW.double(), stride=16)
    error = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    return bool(error < (1e-5 if PRODUCTS[dtype] is torch.float32 else 2e-2))
