"""What admins see and change: tokens, quotas, the audit log."""
