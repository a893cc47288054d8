"""Layouts of boxes and outlines, for detectors."""
