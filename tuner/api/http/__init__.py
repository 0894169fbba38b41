"""What every request passes: connection, guards, errors, rendering."""
