"""Shared code of all benchmarks: the bench, the setting, the report."""
