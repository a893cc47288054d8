"""The compiled library's Python side.

The library is optional (`csrc/build.py`). `SWIN_BACKBONE_NATIVE=0` turns it off.
"""

from .availability import why_not, why_not_in

__all__ = ['why_not', 'why_not_in']
