"""Kinds of ops of a package: one of two launches and two outputs, one that changes what it is given."""
