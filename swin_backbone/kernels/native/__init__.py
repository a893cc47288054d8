"""The compiled library's Python side.

The library is optional (`csrc/build.py`). `SWIN_BACKBONE_NATIVE=0` turns it off.
"""

from .availability import find_dtype_obstacle, find_obstacle

__all__ = ['find_dtype_obstacle', 'find_obstacle']
