"""The simulator, judged by measured schedules and fitted to them."""
