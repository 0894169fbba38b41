"""The cards that a service measures on, and their work."""
