"""Unit tests in one process: core, search, store, wire, workers, benchmarks."""
