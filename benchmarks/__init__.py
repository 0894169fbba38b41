"""Measuring programs, one folder per subject. Results are in `results/`, and the schedules found are in
`tuner/winners/`."""
