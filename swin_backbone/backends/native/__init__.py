"""The compiled operators' Python side.

They are optional (`build.py`). `SWIN_BACKBONE_NATIVE=0` turns them off.
"""

from .availability import why_not_in
from .backend import Native

__all__ = ['Native', 'why_not_in']
