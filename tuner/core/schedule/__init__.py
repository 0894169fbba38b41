"""What is chosen: tiling, ordering, plan kind. Frozen values, and nothing that judges them."""
