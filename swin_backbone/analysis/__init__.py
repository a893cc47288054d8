"""What a backbone costs (parameters, multiply-adds, time), and what it sees: pictures of windows, attention, features."""

from .attention import AttentionMap, attention_maps

__all__ = ['AttentionMap', 'attention_maps']
