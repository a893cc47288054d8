"""Attention inside windows by a Triton kernel, for CUDA."""

from ...models.attention import attend as attend_in_torch
from ...replace import register
from . import attend, can_run

register(attend_in_torch, 'triton', can_run.can_run, attend.run)
