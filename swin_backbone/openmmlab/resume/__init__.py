"""Resuming: what a checkpoint keeps, what is read of it, and how a training continues with bit-identical results."""
