"""Queries of tokens, quotas and sessions; the audit log."""
