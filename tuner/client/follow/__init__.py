"""Follows jobs until they end."""
