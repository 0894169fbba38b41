"""Sizes and forms of decode attention, and its allowed positions in a workload."""
