"""A product of matrices."""
