"""A problem's tensors on the card, their references, and the check of results."""
