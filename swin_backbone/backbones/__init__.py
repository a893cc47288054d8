"""What a config names."""

from .swin import SwinBackbone
from .swin_v2 import SwinV2Backbone

__all__ = ['SwinBackbone', 'SwinV2Backbone']
