"""The search space: proposed tilings, orderings and their values."""
