"""What a client may ask."""
