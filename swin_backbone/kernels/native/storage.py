"""The choice of blocks to store values for the backward pass: the others compute their values again.

Letters: C channels.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from ...compat import constant_when_compiled
from .library import PRODUCTS, load

# Operations of a core in the time of a byte from or to memory. Vector units: 117 GFLOP/s and 6 GB/s (Zen 4). AMX: 330
# GFLOP/s of float32 and 610 of bfloat16, and 4 GB/s.
AMX = {torch.float32: 80, torch.bfloat16: 170}
VECTORS = {torch.float32: 20, torch.bfloat16: 40}
RECOMPUTED = 16  # operations for a token, times C squared: qkv, proj, fc1
STORED = 9  # numbers for a token, times C: qkv, attended tokens, tokens after attention, hidden tokens
# The part of all blocks' values that fits in half the memory of mmdet's Swin, beside the inputs of the blocks. Measured
# at 512x512 in float32: 0.58 of Swin-T's values take 0.44 of mmdet's memory, 0.74 of Swin-S's take 0.54.
FITS_IN_HALF = 0.65
Stages = tuple[tuple[int, int], ...]  # channels and blocks of each stage
TINY = (96, 2), (192, 2), (384, 6), (768, 2)


class Storage(NamedTuple):
    """The choice of blocks to store values for the backward pass."""

    least_channels: int  # of a block with stored values
    reason: str


@constant_when_compiled
def is_stored(dtype: torch.dtype, channels: int, stages: Stages = TINY) -> bool:
    """Return whether a training step without `with_cp` stores a block's values, or computes the values again."""
    return channels >= storage_for(dtype, stages).least_channels


@lru_cache(maxsize=64)
def storage_for(dtype: torch.dtype, stages: Stages = TINY) -> Storage:
    """Return the choice of blocks to store values in training, by the processor and by memory.

    Storing writes and reads 9 C numbers for a token. Computing again takes 16 C^2 operations. The faster choice is
    taken, within half the memory of mmdet's Swin. The widest blocks are first, with the largest gain of time for a
    byte. Numbers of 2 bytes fit in half the memory for all blocks.

    Args:
        dtype: of the products, equal to autocast's dtype.
        stages: of the backbone; the default is Swin-T.
    """
    library, reason = load()
    if library is None:
        return Storage(0, str(reason))
    product = PRODUCTS.get(dtype, dtype) if library.multiplies_bfloat16 else torch.float32
    speed = (AMX if library.isa == 'amx' else VECTORS)[product]
    least = 2 * STORED * product.itemsize * speed // RECOMPUTED
    reason = f'{library.isa} computes {speed} operations in the time of a byte of memory'
    numbers = [channels * blocks / 4**stage for stage, (channels, blocks) in enumerate(stages)]
    for stage, (channels, _) in enumerate(stages):
        is_above = product.itemsize == 4 and sum(numbers[stage:]) > FITS_IN_HALF * sum(numbers)
        if is_above and channels >= least:
            least, reason = channels + 1, "values of more blocks take memory above half of that of mmdet's Swin"
    return Storage(least, f'blocks of {least} and more channels store values: {reason}')
