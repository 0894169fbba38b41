"""Shared code of all benchmarks: the workbench, settings, reports."""
