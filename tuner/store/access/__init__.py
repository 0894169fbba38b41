"""Queries about tokens, quotas and sessions; the audit log."""
