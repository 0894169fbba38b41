"""Launch op kinds of a package: one with two launches and two outputs, and one that updates its input in place."""
