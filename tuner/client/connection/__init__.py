"""The service over HTTP, and how it is reached."""
