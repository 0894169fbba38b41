"""Proof of plans: coverage, resources, termination, and no read before its write."""
