"""Forecasts of a plan: simulates a launch, given costs, rates and memory."""
