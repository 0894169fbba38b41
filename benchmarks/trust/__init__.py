"""Whether the figures can be believed: faults, noise, repeats, sanitizers."""
