"""Gradients of weights, summed over the strips of a map.

Layout: T tokens, C channels in, D channels out.
"""

from collections.abc import Collection
from typing import Optional

from torch import Tensor


class GradientSums:
    """The gradients of those weights that want one, by name.

    Args:
        wanted: the names of these weights; what is added for others is not computed.
    """

    def __init__(self, wanted: Collection[str]):
        self.wanted = frozenset(wanted)
        self._sums: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Optional[Tensor]:
        return self._sums.get(name)

    def add(self, name: str, gradient: Optional[Tensor]) -> None:
        """Add a gradient, which from then on belongs to the sum."""
        if name not in self.wanted:
            return
        if name in self._sums:
            self._sums[name] += gradient
        else:  # sums of many strips want more bits than half precision has
            self._sums[name] = gradient.float() if gradient.dtype.itemsize < 4 else gradient

    def add_rows(self, name: str, gradient_TD: Tensor) -> None:
        """Add the sum of rows: the gradient of a linear layer's bias."""
        if name in self.wanted:
            self.add(name, gradient_TD.sum(0))

    def add_product(self, name: str, gradient_TD: Tensor, x_TC: Tensor) -> None:
        """Add gradient^T x: the gradient of a linear layer's weight."""
        if name not in self.wanted:
            return
        D, C = gradient_TD.shape[1], x_TC.shape[1]
        x_TC = x_TC.to(gradient_TD.dtype)
        if name in self._sums and self._sums[name].dtype == gradient_TD.dtype:
            self._sums[name].addmm_(gradient_TD.t(), x_TC)
        elif D >= C:
            self.add(name, gradient_TD.t() @ x_TC)
        else:  # BLAS is a fifth quicker with the longer side in front, here and in what is added to it later
            self.add(name, (x_TC.t() @ gradient_TD).t())
