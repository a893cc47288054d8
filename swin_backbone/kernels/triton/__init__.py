"""Attention inside windows by a Triton kernel, for CUDA."""

from ...models.attention import attend as attend_by_torch
from ...replace import register
from . import attend

register(attend_by_torch, 'triton', attend.can_run, attend.run)
