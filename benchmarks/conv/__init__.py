"""Pairs of convolutions, beside cuDNN and cuBLASLt."""
