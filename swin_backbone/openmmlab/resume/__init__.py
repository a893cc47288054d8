"""Going on from a checkpoint to the same bits: what is kept, what is read of it, and what this run makes of it."""
