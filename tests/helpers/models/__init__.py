"""What the tests of models share."""
