"""Helpers of the tests of kernels."""

from swin_backbone.kernels.native import find_dtype_obstacle, layers

refusal = find_dtype_obstacle  # why the compiled library does not compute in a dtype here; None: it does


def count_blocks(monkeypatch):
    """Return a list that gets, for every block by the library, the dtype of its products."""
    counted, compute = [], layers.BlockOperator.compute

    def count(operator, *tensors):
        counted.append(operator.dtype)
        return compute(operator, *tensors)

    monkeypatch.setattr(layers.BlockOperator, 'compute', count)
    return counted
