"""What a backend made last from the weights of a layer."""

from typing import Any, Optional

from torch import Tensor


class WeightCache:
    """Tensors that a backend made from a layer's weights, by a key of its own; not in copies and pickles."""

    def __init__(self) -> None:
        self.made: Optional[tuple[tuple[Any, ...], list[Tensor]]] = None

    def clear(self) -> None:
        """Forget them."""
        self.made = None

    def __getstate__(self) -> dict[str, Any]:
        return {'made': None}
