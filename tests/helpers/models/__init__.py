"""Helpers of the tests of models."""
