"""The job loop of a worker: candidates on their way, outcomes recorded."""
