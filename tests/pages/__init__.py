"""Tests of the dashboard in a real browser."""
