"""The HTTP interface of the service: a JSON API, an event stream, and a dashboard."""
