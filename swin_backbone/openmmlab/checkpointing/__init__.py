"""The checkpoints of a training: what they keep, written whole, the latest found, loaded, and continued bit by bit."""
