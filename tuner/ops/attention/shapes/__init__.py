"""Sizes and forms of decode attention, and where it may stand in a workload."""
