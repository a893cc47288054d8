"""Classes for configs: backbones, and the global attention layer."""

from importlib import import_module
from importlib.util import find_spec

from .global_attention import GlobalAttention
from .simmim import SimMIMSwinBackbone, SimMIMSwinV2Backbone
from .swin import SwinBackbone
from .swin_mlp import SwinMLPBackbone
from .swin_v2 import SwinV2Backbone

if find_spec('swin_backbone.kernels') is not None:  # replacements of the forwards; without the folder torch computes
    for package in ('swin', 'triton'):
        import_module(f'swin_backbone.kernels.{package}')

__all__ = [
    'GlobalAttention',
    'SimMIMSwinBackbone',
    'SimMIMSwinV2Backbone',
    'SwinBackbone',
    'SwinMLPBackbone',
    'SwinV2Backbone',
]
