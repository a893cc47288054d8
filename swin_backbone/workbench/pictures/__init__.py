"""Figures of windows, masks, attention, features and training curves, and the colours of classes."""
