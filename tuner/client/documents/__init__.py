"""Requests to the service and its responses, as plain dicts."""
