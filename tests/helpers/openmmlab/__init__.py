"""Helpers of the tests of tools, data and trainings."""
