"""Measuring programs, one folder per subject; results are in `results/`, and the schedules found in
`tuner/winners/`.
"""
