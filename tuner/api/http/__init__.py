"""What applies to every request: connections, guards, errors, rendering."""
