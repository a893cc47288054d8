"""Attention inside windows by a Triton kernel, for CUDA."""

from ...models.layers import SwinMLPBlock
from ...models.layers.swin_block import BaseAttention
from ...replace import register, register_refusal
from .attend import plan

register(BaseAttention.forward, 'triton', plan)
register_refusal(SwinMLPBlock.forward, 'triton', 'The kernel is for attention, and Swin-MLP has none.')
