"""The job loop of a worker: candidates in flight, outcomes recorded."""
