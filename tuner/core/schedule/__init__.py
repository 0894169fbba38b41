"""The choices of a schedule: tiling, ordering, plan kind. Frozen values, without any rules about them."""
