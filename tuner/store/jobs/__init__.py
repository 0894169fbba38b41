"""Queries of jobs: the queue, batches, events, webhooks."""
