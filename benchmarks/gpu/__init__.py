"""A GPU: whether the kernels are right there, how fast they are, and what backbones take.

`python -m benchmarks.gpu.report` asks it all; README.md has the way to a GPU machine without network.
"""
