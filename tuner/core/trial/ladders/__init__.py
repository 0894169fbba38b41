"""Jobs that were submitted together, and the result of a ladder of row counts."""
