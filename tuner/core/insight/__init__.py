"""Explanations, counters, traces, and the quality of forecasts."""
