"""Queries of trials and their inspections."""
