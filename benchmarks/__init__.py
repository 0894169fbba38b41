"""Programs that measure, a room an aim; what they find is in `results/`, the schedules found in `tuner/winners/`."""
