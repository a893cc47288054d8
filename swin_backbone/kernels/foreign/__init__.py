"""Swin layers of models of other packages by the compiled library, after `accelerate`."""
