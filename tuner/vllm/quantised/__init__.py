"""Quantised MLPs inside vLLM: which are replaced, and their weights in the layout of the kernels."""
