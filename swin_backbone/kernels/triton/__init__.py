"""Attention inside windows by a Triton kernel, for CUDA."""

from ...models.layers import SwinMLPBlock
from ...models.layers.attention import BaseAttention
from ...replace import register_replacement, register_unsupported
from .attend import plan_attention

register_replacement(BaseAttention.forward, 'triton', plan_attention)
register_unsupported(SwinMLPBlock.forward, 'triton', 'The kernel is for attention, and Swin-MLP has none.')
