"""First guesses and priors: candidates that a search tries before it has a model."""
