"""Packs: a file with the kernels of many shapes and rows, for programs without tuner."""
