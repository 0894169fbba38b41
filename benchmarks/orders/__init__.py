"""One tiling of a pair in many orders."""
