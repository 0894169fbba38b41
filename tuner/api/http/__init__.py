"""What applies to every request: connection, guards, errors, rendering."""
