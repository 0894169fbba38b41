"""The jobs of a ladder, and its result."""
