"""Benchmarks without a GPU: the proof, the service, the compiler."""
