"""Tile ops with other tensors than one source and one output."""
