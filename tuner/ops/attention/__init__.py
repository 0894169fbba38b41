"""Decode attention."""
