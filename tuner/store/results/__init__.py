"""Queries of results, and the artifacts that they name."""
