"""Attention inside windows as a Triton kernel, for CUDA."""
