"""Logins through an authenticating proxy."""
