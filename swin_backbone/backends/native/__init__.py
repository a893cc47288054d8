"""The compiled operators' Python side.

They are optional (`build.py`). `SWIN_BACKBONE_NATIVE=0` turns them off. `SWIN_BACKBONE_NATIVE=all` also turns on
bfloat16 by AVX-512 without AMX, which has not been measured on such a processor.
"""

from .backend import Native
from .library import why_not_in

__all__ = ['Native', 'why_not_in']
