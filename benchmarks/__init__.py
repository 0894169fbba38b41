"""Measuring programs, one room per subject; results are in `results/`, the schedules found in `tuner/winners/`."""
