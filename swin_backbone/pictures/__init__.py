"""What a backbone costs (parameters, multiply-adds, time), and pictures of its windows, attention and features."""

from .attention import AttentionMap, attention_maps

__all__ = ['AttentionMap', 'attention_maps']
