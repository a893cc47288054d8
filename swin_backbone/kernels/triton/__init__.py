"""Attention inside windows by a Triton kernel, for CUDA."""

from ...models.attention import attend as attend_in_torch
from ...models.layers import SwinMLPBlock
from ...replace import register, register_refusal
from . import attend, can_run

register(attend_in_torch, 'triton', can_run.can_run, attend.run)
register_refusal(SwinMLPBlock.forward, 'triton', 'The kernel is for attention, and Swin-MLP has none.')
