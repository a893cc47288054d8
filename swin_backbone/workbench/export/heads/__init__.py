"""Heads of detectors and segmentors in the form of tensor graphs, for runtimes without torch."""
