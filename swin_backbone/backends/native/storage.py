"""The decision what training stores of a block: its input alone, or also values that the backward pass needs.

Letters: C channels.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from .library import PRODUCTS, load

# Operations of a core in the time of one byte from or to memory. Vector units: 117 GFLOP/s and 6 GB/s (Zen 4). AMX has
# 330 GFLOP/s of float32 and 1500 of bfloat16.
AMX = {torch.float32: 80, torch.bfloat16: 700}
VECTORS = {torch.float32: 20, torch.bfloat16: 40}
RECOMPUTED = 16  # operations for each token, times C squared: qkv, proj, fc1
STORED = 9  # numbers for each token, times C: qkv, attended tokens, tokens after attention, hidden tokens


class Storage(NamedTuple):
    """Which blocks store values."""

    least_channels: int  # of a block that does
    in_first_stage: bool
    reason: str


def stores(dtype: torch.dtype, channels: int, is_first_stage: bool, with_cp: bool = False) -> bool:
    """Return whether a training step stores a block's values. A block that stores nothing computes them again.

    Args:
        dtype: of the products, as autocast names it.
        channels: C.
        is_first_stage: whether the block reads the largest maps of its backbone.
        with_cp: whether the block must use the least memory.
    """
    storage = storage_for(dtype)
    return not with_cp and channels >= storage.least_channels and (storage.in_first_stage or not is_first_stage)


@lru_cache(maxsize=8)
def storage_for(dtype: torch.dtype) -> Storage:
    """Return which blocks store values in training, by the processor and by memory.

    Storing writes and reads 9 C numbers for each token. Computing again takes 16 C^2 operations. The faster choice is
    taken, within half the memory of mmdet's Swin-T: 572 MiB at 512x512. Stored numbers of 4 bytes take 250 MiB without
    the first stage, and 373 MiB with it. Numbers of 2 bytes take 224 MiB with it.
    """
    library, reason = load()
    if library is None:
        return Storage(0, False, str(reason))
    product = PRODUCTS.get(dtype, dtype) if library.multiplies_bfloat16 else torch.float32
    speed = (AMX if library.isa == 'amx' else VECTORS)[product]
    least, in_first_stage = 2 * STORED * product.itemsize * speed // RECOMPUTED, product.itemsize == 2
    memory = '' if in_first_stage else ' of all stages but the first, which has most tokens,'
    return Storage(
        *(least, in_first_stage),
        f'blocks of {least} and more channels{memory} store values for the backward pass: {library.isa} computes about '
        f'{speed} operations in the time of a byte of memory',
    )
