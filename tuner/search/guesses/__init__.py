"""First guesses and prior results: what a search tries before it has a model."""
