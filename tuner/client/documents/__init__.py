"""What goes to the service and comes back, as plain dicts."""
