"""A plan as a table of int32 words: its one binary form."""
