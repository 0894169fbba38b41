"""What is known of an element type and of an activation: a row each, to which packages may add."""
