"""What packs and the runtime cost on a card."""
