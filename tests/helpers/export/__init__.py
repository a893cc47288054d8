"""Helpers of the tests of exported models."""
