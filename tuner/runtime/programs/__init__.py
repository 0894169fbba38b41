"""What a caller runs: a pack's FFNs and layers, an artifact."""
