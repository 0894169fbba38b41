"""The JSON API: routes by subject."""
