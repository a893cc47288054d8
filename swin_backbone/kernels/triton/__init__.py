"""Attention inside windows by a Triton kernel, for CUDA."""

from ...models import attention
from ...replace import register
from . import attend, can_run

register(attention.attend, 'triton', can_run.can_run, attend.run)
