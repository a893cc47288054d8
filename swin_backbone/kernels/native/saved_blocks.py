"""The blocks of a backbone that save activations for the backward pass. The other blocks recompute them.

Letters: C channels.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from ...compat import constant_when_compiled
from .library import GEMM_DTYPES, load_library

# FLOPs of a core per byte of memory traffic. Vector units: 117 GFLOP/s and 6 GB/s (Zen 4). AMX: 330
# GFLOP/s of float32 and 610 of bfloat16, and 4 GB/s.
AMX = {torch.float32: 80, torch.bfloat16: 150}
VECTORS = {torch.float32: 20, torch.bfloat16: 40}
RECOMPUTED = 16  # operations for a token, times C squared: qkv, proj, fc1
SAVED = 9  # numbers for a token, times C: qkv, attended tokens, tokens after attention, hidden tokens
# At most this share of all blocks' activations is saved: then training takes about half the memory of mmdet's Swin.
# Measured at 512x512 in float32: 0.58 of Swin-T's activations take 0.44 of mmdet's memory, 0.74 of Swin-S's take 0.54.
MAX_SAVED_SHARE = 0.65
Stages = tuple[tuple[int, int], ...]  # channels and blocks of each stage
SWIN_T_STAGES = (96, 2), (192, 2), (384, 6), (768, 2)


class SavingRule(NamedTuple):
    """Blocks of `least_channels` and more save activations for the backward pass."""

    least_channels: int
    reason: str


@constant_when_compiled
def saves_activations(dtype: torch.dtype, channels: int, stages: Stages = SWIN_T_STAGES) -> bool:
    """Return whether a training step without `with_cp` saves the activations of a block of so many channels.

    The other blocks compute their activations again in backward.

    Args:
        stages: of the backbone; the default is Swin-T.
    """
    return channels >= choose_saving_rule(dtype, stages).least_channels


@lru_cache(maxsize=64)
def choose_saving_rule(dtype: torch.dtype, stages: Stages = SWIN_T_STAGES) -> SavingRule:
    """Return the rule by which blocks save activations in training, by the processor and by memory.

    Saving writes and reads 9 C numbers for a token. Computing again takes 16 C^2 operations. The faster choice is
    taken, within half the memory of mmdet's Swin. The widest blocks are first: they save the most time per
    byte. In numbers of 2 bytes, the activations of all blocks fit in half the memory.

    Args:
        dtype: of the products, equal to autocast's dtype.
        stages: of the backbone; the default is Swin-T.
    """
    library, reason = load_library()
    if library is None:
        return SavingRule(0, str(reason))
    gemm_dtype = GEMM_DTYPES.get(dtype, dtype) if library.has_bf16_gemm else torch.float32
    speed = (AMX if library.isa == 'amx' else VECTORS)[gemm_dtype]
    least = 2 * SAVED * gemm_dtype.itemsize * speed // RECOMPUTED
    reason = f'{library.isa} computes {speed} operations in the time of a byte of memory'
    activations = [channels * blocks / 4**stage for stage, (channels, blocks) in enumerate(stages)]  # relative
    for stage, (channels, _) in enumerate(stages):
        is_above = gemm_dtype.itemsize == 4 and sum(activations[stage:]) > MAX_SAVED_SHARE * sum(activations)
        if is_above and channels >= least:
            least, reason = channels + 1, "activations of more blocks take memory above half of that of mmdet's Swin"
    return SavingRule(least, f'blocks of {least} and more channels save activations: {reason}')
