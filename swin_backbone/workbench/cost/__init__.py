"""Parameters and multiply-adds of a backbone or a whole model."""
