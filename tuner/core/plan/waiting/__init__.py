"""Signals that tiles post, and waits for them."""
