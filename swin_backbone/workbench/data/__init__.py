"""Pictures and annotations: reading, checks, a user's own data, and the order of training."""
