"""The job loop of a worker: candidates in progress, outcomes recorded."""
