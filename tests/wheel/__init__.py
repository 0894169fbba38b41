"""The wheel, used from an empty environment."""
