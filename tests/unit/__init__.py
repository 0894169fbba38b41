"""Each package alone, in one process: core, search, store, wire, workers, benchmarks."""
