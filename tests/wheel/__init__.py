"""Tests of the wheel in an empty environment."""
