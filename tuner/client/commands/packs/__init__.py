"""Commands for packs: made, shown, verified."""
