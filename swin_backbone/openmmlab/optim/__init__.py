"""Updates of weights: mixed precision, learning rates by layer, and skipped steps."""
