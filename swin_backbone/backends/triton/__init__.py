"""Attention inside windows as one kernel in Triton, forward and backward. Importing it does not import Triton."""

from .attention import attend_in_windows

__all__ = ['attend_in_windows']
