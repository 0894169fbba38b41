"""Measures candidates and the library together: times, counters, energy, traces."""
