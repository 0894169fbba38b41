"""Jobs that are watched until they end."""
