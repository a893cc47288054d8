"""What the tests of checkpoints share."""
