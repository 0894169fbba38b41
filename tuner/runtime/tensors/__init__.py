"""Arrays of any library, and their checks."""
