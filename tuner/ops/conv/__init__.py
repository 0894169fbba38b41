"""Convolutions of images, computed as implicit matrix products."""
