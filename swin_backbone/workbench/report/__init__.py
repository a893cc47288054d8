"""A page on what a model gets wrong, and its numbers."""
