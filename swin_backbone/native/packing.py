"""Weights of linear layers in the order the operators read them, kept as long as they are the weights."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

# What an operator wants whole in a panel of columns: of q, k and v a head.
Units = Sequence[int]


class Packed:
    """The packed weights of one module, in one dtype at a time.

    They are made again when a weight is another tensor, in other memory, of another dtype, or changed in place. What is
    written through `.data`, as mmengine's EMAHook does, no version counts: samples of the weights tell, one in 61
    numbers, and `train` and `_apply` of a module `clear` them anyway. Copies and pickles of a module leave them out.
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
        """The weights (out, in...) packed in `dtype`, after `arrange` has put their inputs in order."""
        if any(weight.is_inference() for weight in weights):  # which count no changes
            return _pack(weights, dtype, units, arrange)
        samples = torch.ops.swin_backbone.fingerprint(weights)
        key = dtype, samples, *((id(w), w.data_ptr(), w._version, w.dtype, w.shape) for w in weights)
        made = self._made  # once: another thread may exchange it
        if made is None or made[0] != key:
            self._made = None  # first, so that there are never two
            with torch.inference_mode(False):
                self._made = made = key, _pack(weights, dtype, units, arrange)
        return made[1]

    def clear(self) -> None:
        """Forget them."""
        self._made = None

    def __getstate__(self) -> dict[str, Any]:
        return {'_made': None}


def _pack(weights, dtype, units, arrange) -> list[Tensor]:
    with torch.no_grad():
        return [torch.ops.swin_backbone.pack_linear(arrange(w), dtype, unit) for w, unit in zip(weights, units)]
