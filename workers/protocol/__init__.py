"""The words that supervisor and child exchange, and what faults are called."""
