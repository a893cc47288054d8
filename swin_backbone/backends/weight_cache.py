"""What one layer keeps between its calls for the compiled library."""

from typing import Any, Optional

from torch import Tensor


class WeightCache:
    """Packed weights of a layer and the layer's last check; copies and pickles have neither.

    Attributes:
        made: the tensors, after the key that tells whether they are up to date.
        checked: what was checked, why the library cannot compute it, and the library's arguments.
    """

    def __init__(self) -> None:
        self.made: Optional[tuple[tuple[Any, ...], list[Tensor]]] = None
        self.checked: Optional[tuple[list[Any], Optional[str], Any]] = None

    def clear(self) -> None:
        """Drop both."""
        self.made = self.checked = None

    def __getstate__(self) -> dict[str, Any]:
        return {'made': None, 'checked': None}
