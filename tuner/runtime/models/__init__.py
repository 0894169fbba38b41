"""A pack's kernels in the MLPs of a model of transformers."""
