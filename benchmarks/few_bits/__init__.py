"""Pairs with weights of few bits, beside the public kernels for them."""
