"""The pages that list jobs, batches and results."""
