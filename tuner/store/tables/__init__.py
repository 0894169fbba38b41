"""The tables, and domain values as their columns."""
