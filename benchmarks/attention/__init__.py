"""Decode attention compared with the libraries' kernels."""
