"""Pictures of windows, masks, attention, features and training curves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import AttentionMap as AttentionMap
    from .attention import attention_maps as attention_maps


def __getattr__(name: str) -> Any:
    """Import at first use: colours of labels need no torch."""
    if name not in ('AttentionMap', 'attention_maps'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module('.attention', __name__), name)
