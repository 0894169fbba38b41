"""Traces, measured and forecast, and how they are drawn."""
