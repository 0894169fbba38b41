"""The simulated GPU: the evaluator without a card."""
