"""Statistics of samples: pure functions of lists of numbers."""
