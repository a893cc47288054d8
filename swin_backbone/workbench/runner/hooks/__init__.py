"""The hooks of every training and test: errors, signals, validations, and lines of the log."""
