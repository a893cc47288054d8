"""What a config names."""

from .swin import SwinBackbone

__all__ = ['SwinBackbone']
