"""What dropout and stochastic depth draw."""

from torch import Tensor


def draw_keep(empty: Tensor, rate: float) -> Tensor:
    """Fill a tensor with what dropout multiplies by: 0 with probability `rate`, else 1 / (1 - rate)."""
    return empty.bernoulli_(1 - rate).div_(1 - rate)
