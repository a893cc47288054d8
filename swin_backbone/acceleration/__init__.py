"""Swin models of other packages, computed by the compiled library in place."""

from .swap import accelerate_swin, find_swins, restore_swin

__all__ = ['accelerate_swin', 'find_swins', 'restore_swin']
