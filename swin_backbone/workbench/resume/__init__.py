"""Checkpoints of a training: save, find the latest, load, resume."""
