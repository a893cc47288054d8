"""Swin models of other packages, computed by the compiled library in place."""
