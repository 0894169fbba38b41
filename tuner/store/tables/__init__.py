"""The tables, and values of the domain as their columns."""
