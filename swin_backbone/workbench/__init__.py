"""What people do with a model: train, test, predict, export, report."""
