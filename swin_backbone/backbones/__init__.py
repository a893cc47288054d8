"""What a config names."""

from .global_attention import GlobalAttention
from .swin import SwinBackbone

__all__ = ['GlobalAttention', 'SwinBackbone']
