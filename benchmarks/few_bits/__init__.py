"""Pairs with weights of few bits, compared with the public kernels for them."""
