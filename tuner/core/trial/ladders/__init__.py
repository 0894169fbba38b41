"""Jobs that are asked for together, and what a ladder of numbers of rows answers."""
