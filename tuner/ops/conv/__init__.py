"""Convolutions of images, by implicit products."""
