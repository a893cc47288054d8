"""Compiled operators for CPUs: a whole block, forward and backward; patch embedding, patch merging, output norms.

They are optional (`build.py`). `SWIN_BACKBONE_NATIVE=0` turns them off. `SWIN_BACKBONE_NATIVE=all` also turns on
bfloat16 by AVX-512 without AMX, which has not been measured on such a processor.
"""

from .backend import Way, block, takes_block, takes_stage
from .library import is_available, why_not
from .packing import Packed
from .patches import embed, merge, output_norm

__all__ = [
    'Packed',
    'Way',
    'block',
    'embed',
    'is_available',
    'merge',
    'output_norm',
    'takes_block',
    'takes_stage',
    'why_not',
]
