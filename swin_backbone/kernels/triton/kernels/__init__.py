"""The kernels, in Triton. A launch imports a kernel."""
