"""Jobs of one ladder, and a ladder's result."""
