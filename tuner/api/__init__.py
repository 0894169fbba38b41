"""The HTTP face of the service: a JSON API, an event stream, and a dashboard."""
