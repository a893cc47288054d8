"""Weights of linear layers in the order in which the operators read them, kept until the weights change."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from ..compat import fake_mode

# How many columns must stay together in a panel, for each weight: for q, k and v, those of a head.
Units = Sequence[int]


class Packed:
    """The packed weights of one module, in one dtype at a time. Copies and pickles of a module do not include them.

    They are those of the numbers that the weights have now, whoever wrote these: fused optimizers, `.data` and numpy
    leave no trace in a tensor. So each call reads all weights for a checksum, in a seventh of the time of packing.
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

        def pack() -> list[Tensor]:
            with torch.inference_mode(False), torch.no_grad():
                return [torch.ops.swin_backbone.pack_linear(arrange(w), dtype, unit) for w, unit in zip(weights, units)]

        if fake_mode() is not None:  # whose tensors have no numbers
            return pack()
        key = dtype, *units, *((w.shape, w.dtype) for w in weights), torch.ops.swin_backbone.checksum(weights)
        made = self._made  # read once: another thread may replace it
        if made is not None and made[0] == key:
            return made[1]
        self._made = None  # first free the old copy, so that there are never two
        panels = pack()
        if torch.ops.swin_backbone.checksum(weights) == key[-1]:  # else a thread wrote them meanwhile
            self._made = key, panels
        return panels

    def clear(self) -> None:
        """Forget them."""
        self._made = None

    def __getstate__(self) -> dict[str, Any]:
        return {'_made': None}
