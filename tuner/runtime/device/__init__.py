"""The CUDA driver through ctypes, and loaded kernels."""
