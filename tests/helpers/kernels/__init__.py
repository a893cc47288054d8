"""Helpers of the tests of backends."""
