"""Queries about jobs and trials."""
