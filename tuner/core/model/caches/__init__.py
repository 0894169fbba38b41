"""The memory of a GPU: content of the L2, shared bandwidth, merged requests."""
