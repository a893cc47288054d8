"""Layers of detectors and segmentors by the compiled library."""
