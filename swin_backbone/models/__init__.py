"""Classes for configs: backbones, and the global attention layer."""

from .global_attention import GlobalAttention
from .simmim import SimMIMSwinBackbone, SimMIMSwinV2Backbone
from .swin import SwinBackbone
from .swin_mlp import SwinMLPBackbone
from .swin_v2 import SwinV2Backbone

__all__ = [
    'GlobalAttention',
    'SimMIMSwinBackbone',
    'SimMIMSwinV2Backbone',
    'SwinBackbone',
    'SwinMLPBackbone',
    'SwinV2Backbone',
]
