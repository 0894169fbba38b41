"""The memory of a GPU: what the L2 holds, bandwidth that is shared, requests that are merged."""
