"""Tensors made from the weights of a module, kept as long as the weights do not change."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from ..compat import fake_mode


class WeightCache:
    """Keeps what was made last from the weights of one module. Copies and pickles of a module do not include it."""

    def __init__(self) -> None:
        self._made: Optional[tuple[tuple, list[Tensor]]] = None

    def keep(self, weights: Sequence[Tensor], settings: tuple, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What `make` gives for these weights and settings; it is called only if one of them has changed.

        A weight has changed if it is another tensor, has other memory or another dtype, or was written in place. Writes
        through `.data`, as by mmengine's EMAHook, and steps of fused optimizers do not change a tensor's version, so a
        module's `train` and `_apply` call `clear`.
        """
        key = *settings, *((id(w), _address(w), w._version, w.dtype, w.shape) for w in weights)
        made = self._made  # read once: another thread may replace it
        if made is None or made[0] != key:
            self._made = None  # first free the old copy, so that there are never two
            with torch.inference_mode(False):
                self._made = made = key, make()
        return made[1]

    def clear(self) -> None:
        """Forget it."""
        self._made = None

    def __getstate__(self) -> dict[str, Any]:
        return {'_made': None}


def _address(tensor: Tensor) -> int:
    """Where a tensor's values are; 0 in a fake mode, whose tensors have none."""
    return tensor.data_ptr() if fake_mode() is None else 0
