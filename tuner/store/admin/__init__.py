"""Backups, migrations, removal of data, and the choice of the leading server."""
