"""Candidate to cubin to zip: what compiles, and what a user takes home."""
