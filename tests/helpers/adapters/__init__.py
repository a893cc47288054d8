"""Helpers of the tests of adapters."""
