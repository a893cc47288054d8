"""The compiled operators' Python side.

They are optional (`build.py`). `SWIN_BACKBONE_NATIVE=0` turns them off.
"""

from .backend import Native
from .library import why_not_in

__all__ = ['Native', 'why_not_in']
