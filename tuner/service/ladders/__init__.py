"""Jobs of one ladder, and what a ladder answers."""
