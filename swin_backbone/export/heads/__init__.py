"""The heads of detectors and segmentors as graphs of tensors, which a runtime without torch can run."""
