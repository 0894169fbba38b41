"""Queries about jobs: the queue, batches, events, webhooks."""
