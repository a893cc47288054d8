"""Weights of linear layers in the order in which the operators read them, cached until the weights change."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..weight_cache import WeightCache

# How many columns must stay together in a panel, for each weight: for q, k and v, those of a head.
Units = Sequence[int]


class Packed(WeightCache):
    """The packed weights of one module, in one dtype at a time; kept until the weights change: see `WeightCache.keep`.

    Writes through `.data` are found too, by comparing samples, if a whole row or column of a weight has changed.
    """

    def get(
        self,
        weights: Sequence[Tensor],
        dtype: torch.dtype,
        units: Units,
        arrange: Callable[[Tensor], Tensor] = torch.Tensor.detach,
    ) -> list[Tensor]:
        """The weights (out, in...) packed in `dtype`; `arrange` first puts their inputs in the operator's order."""
        if any(weight.is_inference() for weight in weights):  # inference tensors have no version
            return _pack(weights, dtype, units, arrange)
        samples = torch.ops.swin_backbone.fingerprint(weights)
        return self.keep(weights, (dtype, samples), lambda: _pack(weights, dtype, units, arrange))


def _pack(weights, dtype, units, arrange) -> list[Tensor]:
    with torch.no_grad():
        return [torch.ops.swin_backbone.pack_linear(arrange(w), dtype, unit) for w, unit in zip(weights, units)]
