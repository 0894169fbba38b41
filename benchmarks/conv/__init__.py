"""Pairs of convolutions, compared with cuDNN and cuBLASLt."""
