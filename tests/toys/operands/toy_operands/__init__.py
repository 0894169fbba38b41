"""Tile ops that do not have exactly one source and one output."""
