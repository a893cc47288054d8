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
    """Return a list that gets an entry for every block by the library."""
    counted, compute = [], layers.BlockOperator.compute
    monkeypatch.setattr(layers.BlockOperator, 'compute', lambda *arguments: counted.append(1) or compute(*arguments))
    return counted
