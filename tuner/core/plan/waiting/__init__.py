"""Signals that tiles post to, and waits for them."""
