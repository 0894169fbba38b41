"""Divides each row by its largest absolute value."""
