"""Timings of backbones, whole models and operators: `python -m benchmarks.NAME --help`, in a checkout."""
