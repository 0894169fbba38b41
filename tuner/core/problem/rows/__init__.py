"""Properties of element types and activations: one row each; packages may add rows."""
