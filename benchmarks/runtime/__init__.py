"""The cost of packs and of the runtime on a card."""
