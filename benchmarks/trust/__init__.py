"""Whether the figures can be trusted: faults, repeats, sanitizers."""
