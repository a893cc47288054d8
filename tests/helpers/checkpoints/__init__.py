"""Helpers of the tests of checkpoints."""
