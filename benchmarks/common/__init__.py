"""What all benchmarks use: the bench, the setting, the report."""
