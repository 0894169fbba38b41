"""What all models have in common."""
