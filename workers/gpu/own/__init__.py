"""Launches of launch ops."""
