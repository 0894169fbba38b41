"""Candidates and library beside each other: times, counters, energy, traces."""
