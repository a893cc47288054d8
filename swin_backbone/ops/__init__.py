"""Functions on tensors, without parameters: windows, attention inside them, and a block strip by strip."""
