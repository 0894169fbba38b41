"""The messages between supervisor and child, and the names of faults."""
