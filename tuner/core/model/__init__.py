"""Forecasts of a plan: a simulated launch, from costs, rates and memory."""
