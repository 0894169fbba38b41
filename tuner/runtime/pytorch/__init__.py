"""What the PyTorch operators share: their formulas, checks and lookups."""
