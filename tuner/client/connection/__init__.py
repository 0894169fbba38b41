"""The HTTP connection to the service."""
