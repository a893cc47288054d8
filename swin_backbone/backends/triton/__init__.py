"""Triton's kernels for CUDA. Importing this does not import Triton."""

from .backend import Triton

__all__ = ['Triton']
