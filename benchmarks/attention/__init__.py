"""Decode attention beside the libraries' kernels."""
