"""What times backbones, their parts, kernels and operators: `python -m benchmarks.NAME --help`, in a checkout."""
