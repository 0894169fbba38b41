"""Checks a manifest's launches against their plans, and packs their parameters as bytes."""
