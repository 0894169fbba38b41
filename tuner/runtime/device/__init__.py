"""The CUDA driver by ctypes, and loaded kernels."""
