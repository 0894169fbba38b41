"""Proof of plans: coverage, resources, liveness, and no read before its write."""
