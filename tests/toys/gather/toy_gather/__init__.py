"""Some rows of a table, as many as a launch says."""
