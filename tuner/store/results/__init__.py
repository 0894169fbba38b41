"""Queries of results and their artifacts."""
