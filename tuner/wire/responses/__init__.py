"""The responses of the service."""
