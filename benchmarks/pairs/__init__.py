"""Pairs of the engines' suites: searched, measured against each other, drawn."""
