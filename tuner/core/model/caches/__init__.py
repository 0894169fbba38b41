"""The memory of a GPU: contents of the L2, shared bandwidth, merged requests."""
