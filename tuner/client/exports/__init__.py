"""A job's trials in formats that other programs read. Each module is one format, pure except for Optuna's."""
