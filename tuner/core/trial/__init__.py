"""What came of a candidate: outcome, samples, statistics, job, records."""
