"""Attention inside windows by a Triton kernel, for CUDA."""

from ...models.layers import SwinMLPBlock
from ...models.layers.attention import BaseAttention
from ...replace import register_replacement
from .plans import plan_attention

register_replacement(BaseAttention.forward, 'triton', plan_attention)
register_replacement(SwinMLPBlock.forward, 'triton', lambda *_: 'The kernel is for attention, and Swin-MLP has none.')
