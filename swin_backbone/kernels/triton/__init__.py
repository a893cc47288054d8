"""Attention inside windows by a Triton kernel, for CUDA."""
