"""The JSON API: routes by topic."""
