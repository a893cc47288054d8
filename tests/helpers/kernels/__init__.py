"""Helpers of the tests of kernels."""

from swin_backbone.kernels.native import can_multiply, layers
from swin_backbone.replace import CannotRun


def refusal(dtype):
    """Return why the compiled library does not compute in a dtype here; None: it does."""
    try:
        can_multiply(dtype, raise_error=True)
    except CannotRun as error:
        return error.reason
    return None


def count_blocks(monkeypatch):
    """Return a list that gets, for every block by the library, the dtype of its products."""
    counted, compute = [], layers.BlockOperator.compute

    def count(operator, *tensors):
        counted.append(operator.dtype)
        return compute(operator, *tensors)

    monkeypatch.setattr(layers.BlockOperator, 'compute', count)
    return counted
