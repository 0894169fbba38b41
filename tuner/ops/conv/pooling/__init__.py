"""Pooling of images as a tile op: its maximum or average over windows, between convolutions."""
