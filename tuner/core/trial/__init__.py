"""The results of a candidate: outcome, samples, statistics, job, records."""
