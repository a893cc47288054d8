"""What the tests of adapters share."""
