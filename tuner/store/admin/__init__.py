"""Backups, migrations, removal, and the choice of the leading server."""
