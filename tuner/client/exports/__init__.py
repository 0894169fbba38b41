"""A job's trials in formats that other programs read. Each module is one format; all but Optuna's only convert data."""
