"""Decode attention compared with library kernels."""
