"""The cards that a service measures on, and what they did."""
