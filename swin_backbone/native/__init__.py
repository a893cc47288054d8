"""Compiled operators for CPUs: a whole block, forward and backward; patch embedding, patch merging, output norms.

They are optional (`build.py`). `SWIN_BACKBONE_NATIVE=0` does without; `all` also takes what has not been measured on a
processor that it is meant for: bfloat16 by AVX-512 without AMX.
"""

from .library import is_available, why_not
from .operators import Way, block, embed, merge, output_norm, takes_block, takes_stage
from .packing import Packed

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
