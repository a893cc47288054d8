"""The kernels, in Triton. They are imported where they run."""
