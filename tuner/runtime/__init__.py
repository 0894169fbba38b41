"""Runs the kernels of a pack on arrays of CuPy, PyTorch, and whatever speaks DLPack or `__cuda_array_interface__`."""
