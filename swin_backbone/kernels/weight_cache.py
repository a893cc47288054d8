"""Tensors and checks of a layer for the compiled library, kept between calls."""

from typing import Any, Optional


class WeightCache:
    """Tensors made from the weights of a layer, and the layer's last check; copies and pickles start empty.

    Attributes:
        made: a key and the tensors, by the tensors' role. The tensors are up to date if the key is unchanged.
        checked: the checked state of the layer, the reason of a refusal, and the library's arguments.
    """

    def __init__(self) -> None:
        self.made: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self.checked: Optional[tuple[list[Any], Optional[str], Any]] = None

    def clear(self) -> None:
        """Drop the tensors and the check."""
        self.made, self.checked = {}, None

    def __getstate__(self) -> dict[str, Any]:
        return {'made': {}, 'checked': None}
