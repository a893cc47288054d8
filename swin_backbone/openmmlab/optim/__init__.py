"""What changes how weights are updated: mixed precision, learning rates by layer, and steps that are left out."""
