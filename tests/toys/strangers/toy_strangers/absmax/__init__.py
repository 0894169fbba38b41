"""Rows over their largest element."""
