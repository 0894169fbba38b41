"""Decode attention in a pack: its shape, its launches, its part of a program."""
