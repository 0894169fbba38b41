"""Programs that measure, a room an aim; what they find is in `results/`, and the schedules found in `winners/`."""
