"""Measuring programs, one folder per subject. Results are in `results/`, and the schedules that were found in
`tuner/winners/`."""
