"""Blocks, patch layers and position biases as functions of tensors, which several backends share."""
