"""The domain: workloads, schedules, and what is legal and why. No server, database or GPU."""
