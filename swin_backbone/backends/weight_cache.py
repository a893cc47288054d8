"""Cache of packed weights, one entry per layer."""

from typing import Any, Optional

from torch import Tensor


class WeightCache:
    """Tensors made from a layer's weights, with their key; copies and pickles have none."""

    def __init__(self) -> None:
        self.made: Optional[tuple[tuple[Any, ...], list[Tensor]]] = None

    def clear(self) -> None:
        """Drop the entry."""
        self.made = None

    def __getstate__(self) -> dict[str, Any]:
        return {'made': None}
