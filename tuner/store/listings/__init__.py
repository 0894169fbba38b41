"""Listings of many jobs: sorted rows of jobs and batches."""
