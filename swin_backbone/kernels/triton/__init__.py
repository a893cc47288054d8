"""Attention inside windows by a Triton kernel, for CUDA."""

from ...models.attention import attend
from ...replace import register
from .attend import run
from .can_run import can_run

__all__ = ['can_run']

register(attend, 'triton', can_run, run)
