"""The tasks of a launch, the boxes that they read and write, and the edges between them."""
