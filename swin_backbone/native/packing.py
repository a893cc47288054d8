"""Weights of linear layers in the order in which the operators read them, cached until the weights change."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

# How many columns must stay together in a panel, for each weight: for q, k and v, those of a head.
Units = Sequence[int]


class Packed:
    """The packed weights of one module, in one dtype at a time.

    They are made again when a weight is another tensor, has other memory or another dtype, or was changed in place.
    Writes through `.data`, as by mmengine's EMAHook, do not change a tensor's version. They are found by comparing one
    in 61 numbers of the weights; a module's `train` and `_apply` also call `clear`. Copies and pickles of a module do
    not include the packed weights.
    """

    def __init__(self) -> None:
        self._made: Optional[tuple[tuple, list[Tensor]]] = None

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
        key = dtype, samples, *((id(w), w.data_ptr(), w._version, w.dtype, w.shape) for w in weights)
        made = self._made  # read once: another thread may replace it
        if made is None or made[0] != key:
            self._made = None  # first free the old copy, so that there are never two
            with torch.inference_mode(False):
                self._made = made = key, _pack(weights, dtype, units, arrange)
        return made[1]

    def clear(self) -> None:
        """Forget the packed weights."""
        self._made = None

    def __getstate__(self) -> dict[str, Any]:
        return {'_made': None}


def _pack(weights, dtype, units, arrange) -> list[Tensor]:
    with torch.no_grad():
        return [torch.ops.swin_backbone.pack_linear(arrange(w), dtype, unit) for w, unit in zip(weights, units)]
