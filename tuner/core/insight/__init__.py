"""Why it was so: explanations, counters, traces, and how good the forecasts were."""
