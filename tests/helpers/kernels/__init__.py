"""Helpers of the tests of kernels."""

from swin_backbone.kernels.native import computations
from swin_backbone.kernels.native.availability import find_reason_against_dtype

refusal = find_reason_against_dtype  # why the compiled library does not compute in a dtype here; None: it does


def count_blocks(monkeypatch):
    """Return a list that gets, for every block by the library, the dtype of its products."""
    counted, forward = [], computations.BlockComputation.forward

    def count(computation, *tensors, **call):
        counted.append(computation.dtype)
        return forward(computation, *tensors, **call)

    monkeypatch.setattr(computations.BlockComputation, 'forward', count)
    return counted
