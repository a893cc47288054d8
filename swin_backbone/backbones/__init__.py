"""What a config names."""

from .global_attention import GlobalAttention
from .swin import SwinBackbone
from .swin_v2 import SwinV2Backbone

__all__ = ['GlobalAttention', 'SwinBackbone', 'SwinV2Backbone']
