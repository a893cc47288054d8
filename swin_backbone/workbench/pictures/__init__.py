"""Pictures of windows, masks, attention, features and training curves."""

from .attention import AttentionMap, attention_maps

__all__ = ['AttentionMap', 'attention_maps']
