"""Packs: one file with the kernels of many shapes and rows, which programs without tuner can open."""
