"""What a caller can run: a pack's FFNs and layers, and an artifact."""
