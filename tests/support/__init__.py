"""Shared helpers of the tests: cases, mutants, an oracle, an interpreter of plans, servers."""
