"""Signals that tiles post to, and the waits for them."""
